"""Secrets of the server in files under its home: its own key, where programs of the same user find it, and others."""

from __future__ import annotations

import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from torpor.errors import Failed, Forbidden
from torpor.kit.files import DRAFT_PREFIX, fsync_path, write_new
from torpor.wire.home import KEY_FILE

KEY = re.compile(r"tpr_[A-Za-z0-9_-]{43}")
_SECRET = re.compile(r"[0-9a-f]{64}")


def new_key() -> str:
    """Return a fresh key: `tpr_` and 256 random bits."""
    return f"tpr_{secrets.token_urlsafe(32)}"


def load_or_make_key(home: Path) -> str:
    """Return the key in `home`, making one at the first start.

    Raises Forbidden if others than the owner may read the file, Failed if it holds no key.
    """
    return _load_or_make(home / KEY_FILE, new_key(), KEY, "key")


def load_or_make_secret(home: Path, name: str) -> bytes:
    """Return the 256-bit secret in the file `name` of `home`, making one at the first call.

    It is for what the server signs, and never leaves it. Raises Forbidden if others than the owner may read the file,
    Failed if it holds no secret.
    """
    return bytes.fromhex(_load_or_make(home / name, secrets.token_hex(32), _SECRET, "secret"))


def _load_or_make(path: Path, fresh: str, form: re.Pattern[str], what: str) -> str:
    if not path.exists():
        _make(path, fresh)
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Forbidden(f"the {what} file {path} can be read by others than its owner", hint=f"chmod 600 {path}")
    found = path.read_text(encoding="ascii", errors="replace").strip()
    if form.fullmatch(found) is None:
        raise Failed(
            f"the {what} file {path} holds no {what}", hint=f"remove {path}; the next start makes a new {what}"
        )
    return found


def _make(path: Path, content: str) -> None:
    """Make a file whole and durable, for its owner's eyes, unless somebody else makes it first."""
    draft = path.with_name(f"{DRAFT_PREFIX}{path.name}-{secrets.token_hex(4)}")
    try:
        write_new(draft, f"{content}\n".encode())
        with suppress(FileExistsError):  # of two who make it at once, the first wins
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    fsync_path(path.parent)
