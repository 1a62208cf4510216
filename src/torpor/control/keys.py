"""The server's key, in a file under its home, where programs of the same user find it."""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

from torpor.errors import Failed, Forbidden
from torpor.wire.home import KEY_FILE

_KEY = re.compile(r"tpr_[A-Za-z0-9_-]{43}")


def load_or_make_key(home: Path) -> str:
    """Return the key in `home`, making one at the first start.

    Raises Forbidden if others than the owner may read the file, Failed if it holds no key.
    """
    path = home / KEY_FILE
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return _read_key(path)
    key = f"tpr_{secrets.token_urlsafe(32)}"
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{key}\n")
        file.flush()
        os.fsync(file.fileno())
    return key


def _read_key(path: Path) -> str:
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Forbidden(f"the key file {path} can be read by others than its owner", hint=f"chmod 600 {path}")
    key = path.read_text(encoding="ascii", errors="replace").strip()
    if _KEY.fullmatch(key) is None:
        raise Failed(f"the key file {path} holds no key", hint=f"remove {path}; the next start makes a new key")
    return key
