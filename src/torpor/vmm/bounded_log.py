"""What a guest's console and the VMM itself say, kept as text of bounded size: a guest can make both talk without
end, and as fast as it can compute. So what is kept is bounded, and so is how much is read in a second: the sender waits
then, or drops what it has.
"""

from __future__ import annotations

import asyncio
import io
import os
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Protocol

from torpor.kit.files import is_full

# What is kept is the newest between one and two times this many bytes.
CHUNK_BYTES = 512 * 1024
# One read takes at most so much, and after a full one nothing is read for a while: 1.3 MB in a second.
READ_BYTES, REST_S = 65536, 0.05
# So many reads take more than is kept, and than a socket or a pipe holds.
_CATCH_UP_READS = 2 * CHUNK_BYTES // READ_BYTES


class Source(Protocol):
    """A socket, or the reading end of a pipe."""

    def fileno(self) -> int:
        """Return its descriptor."""

    def close(self) -> None:
        """Close it."""


class BoundedLog:
    """Copies what arrives on a source, which belongs to it, into `path`; a full file becomes `path`.1, replacing the
    one before.

    `ended` is set once nothing more will be copied: the other end was closed, or the file cannot be written. `path` may
    be set anew when the file was moved.
    """

    def __init__(self, source: Source, path: Path) -> None:
        os.set_blocking(source.fileno(), False)
        self._source, self.path = source, path
        self.ended = asyncio.Event()
        self._file = path.open("ab", buffering=0)
        self._loop = asyncio.get_running_loop()
        self._rest: asyncio.TimerHandle | None = None
        self._listen()

    def _listen(self) -> None:
        self._rest = None
        self._loop.add_reader(self._source.fileno(), self._take)

    def _take(self) -> None:
        """Copy what one read gives, and rest after a full one."""
        if self._read_some() == READ_BYTES and not self.ended.is_set():
            self._loop.remove_reader(self._source.fileno())
            self._rest = self._loop.call_later(REST_S, self._listen)

    def _read_some(self) -> int:
        """Copy what one read gives, and return how many bytes that were."""
        try:
            data = os.read(self._source.fileno(), READ_BYTES)
            self._keep(data)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._end()
        return len(data)

    def _keep(self, data: bytes) -> None:
        """Write down what has come; on a full disk it is lost, and what comes when there is room again is not."""
        try:
            if self._file.tell() + len(data) > CHUNK_BYTES:
                with suppress(FileNotFoundError):  # it was renamed before, and then there was no room for a new one
                    self.path.replace(_older(self.path))
                full, self._file = self._file, self.path.open("ab", buffering=0)
                full.close()
            self._file.write(data)
        except OSError as error:
            if not is_full(error):
                raise

    def catch_up(self) -> None:
        """Copy what has arrived so far; not more than is kept, as somebody may go on writing meanwhile."""
        for _ in range(_CATCH_UP_READS):
            if self.ended.is_set() or not self._read_some():
                return

    def close(self) -> None:
        """Copy what has arrived, and stop. Idempotent."""
        self.catch_up()
        self._end()

    def _end(self) -> None:
        if not self.ended.is_set():
            if self._rest is not None:
                self._rest.cancel()
            self._loop.remove_reader(self._source.fileno())
            self._source.close()
            self._file.close()
            self.ended.set()


def read_log(path: Path) -> bytes:
    """Return what is kept of a log, oldest first; empty if there is nothing yet."""
    return b"".join(part.read_bytes() for part in (_older(path), path) if part.exists())


def read_log_after(path: Path, position: str) -> tuple[bytes, str]:
    """Return what a log has got after a position, oldest first, and the position after that.

    A position is one that was returned here. Any other, and one whose file is not kept any more, means all that is.
    """
    newest, older = _opened(path), _opened(_older(path))
    with newest or nullcontext(), older or nullcontext():
        files = [_Part(file) for file in (older, newest) if file is not None]
        if len(files) == 2 and files[0].inode == files[1].inode:  # it was renamed just now
            del files[0]
        offsets = [part.offset_of(position) for part in files]
        first = next((number for number, offset in enumerate(offsets) if offset is not None), 0)
        data = b"".join(part.read(offsets[number] or 0) for number, part in enumerate(files) if number >= first)
        return data, files[-1].position() if files else ""


class _Part:
    """One of a log's two files, which may be growing."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self.inode = os.fstat(file.fileno()).st_ino

    def offset_of(self, position: str) -> int | None:
        """Return how far into this file a position is, None if it is not in it."""
        inode, _, offset = position.partition(":")
        if inode != str(self.inode) or not (offset.isascii() and offset.isdecimal() and len(offset) < 20):
            return None
        return int(offset) if int(offset) <= os.fstat(self._file.fileno()).st_size else None

    def read(self, start: int) -> bytes:
        self._file.seek(start)
        return self._file.read()

    def position(self) -> str:
        """Return the position behind what was read last."""
        return f"{self.inode}:{self._file.tell()}"


def _opened(path: Path) -> io.BufferedReader | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")
