"""Files: what the guest, woken first if it sleeps, is asked about them.

Paths are absolute paths in the guest; bytes are never held.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from torpor.control.hosts import ByteSource
from torpor.control.service.awake import ask, reached
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, noticing_loss, show
from torpor.errors import InvalidRequest
from torpor.wire.public import DirListing, FileEntry, Rename, Written

MAX_PATH = 4096
_MODE = re.compile(r"0?([0-7]{1,4})")


def absolute(path: str, name: str = "path") -> str:
    """Return the path if it is an absolute one. Raises InvalidRequest."""
    if not path:
        raise InvalidRequest(f"{name} is empty; it has to be an absolute path such as /root/notes.txt")
    if not path.startswith("/"):
        raise InvalidRequest(f"{name} has to be absolute, to begin with /: {path!r} does not")
    if "\0" in path:
        raise InvalidRequest(f"{name} has a NUL character in it")
    if len(path.encode(errors="replace")) > MAX_PATH:
        raise InvalidRequest(f"{name} is longer than {MAX_PATH} bytes")
    return path


def octal(mode: str | None) -> str | None:
    """Return permission bits as the wire has them, `640`. Raises InvalidRequest."""
    if mode is None:
        return None
    match = _MODE.fullmatch(mode)
    if match is None:
        raise InvalidRequest(f"mode has to be an octal number such as 640, and {mode!r} is not")
    return match[1]


@dataclass(frozen=True, slots=True)
class Target:
    """Where bytes are to be written, and as what. `mode` as `octal` returns it; None leaves the guest's default."""

    path: str
    mode: str | None = None
    user: str | None = None
    append: bool = False


def read(plane: Plane, owned: Owned, path: str, user: str | None) -> AbstractAsyncContextManager[ByteSource]:
    """Open a file for reading. Raises NotFound, InvalidRequest for a folder, Forbidden for `user`."""
    return reached(plane, owned, lambda: plane.host.read(owned.id, path, user))


def walk(plane: Plane, owned: Owned, path: str) -> AbstractAsyncContextManager[ByteSource]:
    """Open the description of a tree: JSON lines, one FileEntry each, parents before children."""
    return reached(plane, owned, lambda: plane.host.walk(owned.id, path))


@asynccontextmanager
async def logs(plane: Plane, owned: Owned) -> AsyncIterator[ByteSource]:
    """Open the machine's console for reading, also that of a failed sandbox while its host still has it."""
    await show(plane, owned)
    async with noticing_loss(plane, owned), plane.host.logs(owned.id) as opened:
        yield opened


class _Upload:
    """A body on its way in, which cannot be sent a second time once a byte of it was read."""

    def __init__(self, body: AsyncIterator[bytes]) -> None:
        self._body = body
        self.is_untouched = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.is_untouched = False
        async for chunk in self._body:
            yield chunk


async def write(plane: Plane, owned: Owned, to: Target, body: AsyncIterator[bytes], size: int | None) -> Written:
    """Replace, or extend, a file by bytes as they come. A body that breaks off leaves the file as it was."""
    query = {"path": to.path, "mode": to.mode, "user": to.user, "append": "true" if to.append else None}
    given = {name: value for name, value in query.items() if value is not None}
    upload = _Upload(body)
    return await ask(
        plane, owned, lambda: plane.host.write(owned.id, given, aiter(upload), size), lambda: upload.is_untouched
    )


async def remove(plane: Plane, owned: Owned, path: str, recursive: bool) -> None:
    """Remove a file, or a folder if it is empty or `recursive`."""
    await ask(plane, owned, lambda: plane.host.remove(owned.id, path, recursive))


async def stat(plane: Plane, owned: Owned, path: str) -> FileEntry:
    """Describe one file, folder or link."""
    return await ask(plane, owned, lambda: plane.host.stat(owned.id, path))


async def list_dir(plane: Plane, owned: Owned, path: str) -> DirListing:
    """List one folder."""
    return await ask(plane, owned, lambda: plane.host.dir(owned.id, path))


async def mkdir(plane: Plane, owned: Owned, to: Target) -> None:
    """Make a folder and its parents; fine if it exists."""
    await ask(plane, owned, lambda: plane.host.mkdir(owned.id, to.path, to.mode, to.user))


async def rename(plane: Plane, owned: Owned, order: Rename) -> None:
    """Move a file or folder, replacing a file at the target."""
    absolute(order.source, "source")
    absolute(order.target, "target")
    await ask(plane, owned, lambda: plane.host.rename(owned.id, order))
