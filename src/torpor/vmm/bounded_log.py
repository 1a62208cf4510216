"""What a guest's console and the VMM itself say, kept as text of bounded size: a guest can make both talk without
end.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Protocol

# What is kept is the newest between one and two times this many bytes.
CHUNK_BYTES = 512 * 1024


class Source(Protocol):
    """A socket, or the reading end of a pipe."""

    def fileno(self) -> int:
        """Return its descriptor."""

    def close(self) -> None:
        """Close it."""


class BoundedLog:
    """Copies what arrives on a source, which belongs to it, into `path`; a full file becomes `path`.1, replacing the
    one before.

    `ended` is set once nothing more will be copied: the other end was closed, or the disk took no more. `path` may be
    set anew when the file was moved.
    """

    def __init__(self, source: Source, path: Path) -> None:
        os.set_blocking(source.fileno(), False)
        self._source, self.path = source, path
        self.ended = asyncio.Event()
        self._file = path.open("ab", buffering=0)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(source.fileno(), self._read_some)

    def _read_some(self) -> bool:
        """Copy what one read gives; return whether there may be more now."""
        try:
            data = os.read(self._source.fileno(), 65536)
            self._keep(data)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._end()
        return bool(data)

    def _keep(self, data: bytes) -> None:
        if self._file.tell() + len(data) > CHUNK_BYTES:
            self._file.close()
            self.path.replace(_older(self.path))
            self._file = self.path.open("ab", buffering=0)
        self._file.write(data)

    def catch_up(self) -> None:
        """Copy everything that has arrived so far."""
        while not self.ended.is_set() and self._read_some():
            pass

    def close(self) -> None:
        """Copy what has arrived, and stop. Idempotent."""
        self.catch_up()
        self._end()

    def _end(self) -> None:
        if not self.ended.is_set():
            self._loop.remove_reader(self._source.fileno())
            self._source.close()
            self._file.close()
            self.ended.set()


def read_log(path: Path) -> bytes:
    """Return what is kept of a log, oldest first; empty if there is nothing yet."""
    return b"".join(part.read_bytes() for part in (_older(path), path) if part.exists())


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")
