"""The local side of uploads and downloads: what is to be sent, and where the guest's names may be written."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from torpor.errors import InvalidRequest
from torpor.wire.names import local_name, wire_name
from torpor.wire.public import FileEntry


@dataclass(frozen=True, slots=True)
class Item:
    """One thing of a folder that is sent. `name` is its path below the folder, with slashes, as the wire has it."""

    name: str
    path: Path
    mode: int
    kind: str

    @property
    def is_dir(self) -> bool:
        """A folder; otherwise it is a file, or skipped."""
        return self.kind == "dir"

    @property
    def is_skipped(self) -> bool:
        """A link to a folder or to nothing."""
        return self.kind == "link"


def folder_items(root: Path) -> Iterator[Item]:
    """Yield what is below a folder, parents before children, by name.

    Raises OSError, and InvalidRequest for what is neither file, folder nor link.
    """
    for parent, folders, files in os.walk(root, onerror=_raise):
        folders.sort()
        for name in [*folders, *sorted(files)]:
            path = Path(parent, name)
            yield _item(path, wire_name(path.relative_to(root).as_posix()))


def _raise(error: OSError) -> None:
    raise error


def _item(path: Path, name: str) -> Item:
    here = path.lstat()
    if stat.S_ISLNK(here.st_mode):
        if not path.is_file():
            return Item(name, path, 0, "link")
        here = path.stat()
    mode = stat.S_IMODE(here.st_mode)
    if stat.S_ISDIR(here.st_mode):
        return Item(name, path, mode, "dir")
    if stat.S_ISREG(here.st_mode):
        return Item(name, path, mode, "file")
    raise InvalidRequest(f"{path} is neither a file nor a folder and cannot be sent")


class Target:
    """A local folder that a guest's folder is written into. No name leads out of it."""

    def __init__(self, remote: str, local: Path) -> None:
        self._prefix = remote.rstrip("/") + "/"
        self._local = local

    def begin(self) -> None:
        """Make the folder. Raises OSError."""
        self._local.mkdir(parents=True, exist_ok=True)

    def place(self, entry: FileEntry) -> Path:
        """Return where an entry belongs. Raises InvalidRequest for one that is not below the folder it was found in."""
        name = entry.path.removeprefix(self._prefix)
        parts = name.split("/")
        if not entry.path.startswith(self._prefix) or "\0" in name or any(part in ("", ".", "..") for part in parts):
            raise InvalidRequest(f"the sandbox names a file {entry.path!r}, which is not inside {self._prefix}")
        path = self._local.joinpath(*map(local_name, parts))
        # A link that stood here before must not lead a write elsewhere.
        if not path.parent.resolve().is_relative_to(self._local.resolve()):
            raise InvalidRequest(f"{path.parent} is a link that leads out of {self._local}")
        return path

    def make_folder(self, entry: FileEntry) -> None:
        """Make the folder of an entry. Raises InvalidRequest as `place` does, and OSError."""
        path = self.place(entry)
        if path.is_symlink():
            raise InvalidRequest(f"{path} is a link, where a folder of the sandbox belongs")
        # Its owner has to be able to fill it, whatever the guest says.
        path.mkdir(mode=entry.mode & 0o777 | 0o700, exist_ok=True)


@contextmanager
def replacing(path: Path, mode: int) -> Iterator[BinaryIO]:
    """Give an open file that takes the place of `path` when the block ends well, and vanishes when it does not."""
    if path.is_dir():
        raise IsADirectoryError(21, os.strerror(21), str(path))
    descriptor, made = tempfile.mkstemp(prefix=f".{path.name[:64]}.", dir=path.parent)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            yield file
            os.fchmod(file.fileno(), mode & 0o777)
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise
