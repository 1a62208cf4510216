"""What is told about a file: one JSON object, the same for stat, list and walk."""

from __future__ import annotations

import os
import stat

from torpor_guest import names
from torpor_guest.accounts import Accounts

Entry = dict[str, object]


def entry_of(path: bytes, accounts: Accounts, *, name: bytes | None = None, folder: int | None = None) -> Entry:
    """Describe a file, folder or link itself (a link is not followed). Raises OSError.

    `path` is how it is called in the answer. With `folder`, an open one, `name` in it is looked at.
    """
    target = path if name is None else name
    status = os.stat(target, dir_fd=folder, follow_symlinks=False)
    is_link = stat.S_ISLNK(status.st_mode)
    link = names.to_text(os.readlink(target, dir_fd=folder)) if is_link else None
    return {
        "name": names.to_text(name or path.rpartition(b"/")[2] or b"/"),
        "path": names.to_text(path),
        "is_dir": stat.S_ISDIR(status.st_mode),
        "is_symlink": is_link,
        "size": status.st_size,
        "mode": stat.S_IMODE(status.st_mode),
        "mtime": status.st_mtime_ns / 1e9,
        "user": accounts.user_name(status.st_uid),
        "group": accounts.group_name(status.st_gid),
        "link_target": link,
    }
