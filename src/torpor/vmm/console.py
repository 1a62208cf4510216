"""The guest's serial console, kept as text of bounded size."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

# The console may be flooded by the guest: what is kept is the newest between one and two times this many bytes.
CHUNK_BYTES = 512 * 1024


class Console:
    """Copies what arrives on a socket into `path`; a full file becomes `path`.1, replacing the one before.

    `ended` is set once nothing more will be copied. `path` may be set anew when the file was moved.
    """

    def __init__(self, sock: socket.socket, path: Path) -> None:
        sock.setblocking(False)
        self._sock, self.path = sock, path
        self.ended = asyncio.Event()
        self._file = path.open("ab", buffering=0)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._read_some)

    def _read_some(self) -> None:
        try:
            data = self._sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        if self._file.tell() + len(data) > CHUNK_BYTES:
            self._file.close()
            self.path.replace(self.path.with_name(self.path.name + ".1"))
            self._file = self.path.open("ab", buffering=0)
        self._file.write(data)

    def close(self) -> None:
        """Stop copying. Idempotent."""
        if not self._file.closed:
            self._loop.remove_reader(self._sock)
            self._sock.close()
            self._file.close()
            self.ended.set()


def read_console(path: Path) -> bytes:
    """Return what is kept of a console, oldest first; empty if there is nothing yet."""
    return b"".join(part.read_bytes() for part in (path.with_name(path.name + ".1"), path) if part.exists())
