"""A guest that writes on its console without end takes neither the host's disk nor the server's time."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from pathlib import Path

from torpor.vmm.bounded_log import CHUNK_BYTES, READ_BYTES, REST_S, BoundedLog, read_log

MIB = 1024 * 1024


class Flood:
    """Somebody who writes into a socket as fast as it is read, `most` bytes in all, until it is closed."""

    def __init__(self, sock: socket.socket, most: int = 1024 * MIB) -> None:
        self.written = 0
        self._sock, self._most = sock, most
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        data = b"y\n" * 32768
        try:
            while self.written < self._most:
                self.written += self._sock.send(data)
        except OSError:
            pass

    def wait(self) -> None:
        """Return when all of it is written, or the socket is closed."""
        self._thread.join()

    def end(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._sock.close()


async def test_a_flood_is_read_at_a_bounded_rate_and_kept_in_bounded_files(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    began = time.monotonic()
    log, flood = BoundedLog(ours, tmp_path / "console.log"), Flood(theirs, most=3 * MIB)
    await asyncio.to_thread(flood.wait)
    elapsed_s = time.monotonic() - began
    flood.end()
    log.close()
    assert elapsed_s >= (2 * MIB // READ_BYTES - 1) * REST_S  # the third is what the socket holds, at the most
    assert CHUNK_BYTES < sum(file.stat().st_size for file in tmp_path.iterdir()) <= 2 * CHUNK_BYTES
    assert set(read_log(tmp_path / "console.log").replace(b"\n", b"")) == set(b"y")


async def test_closing_it_does_not_wait_for_somebody_who_never_ends(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    log, flood = BoundedLog(ours, tmp_path / "console.log"), Flood(theirs, most=512 * MIB)
    log.catch_up()
    log.close()
    written = flood.written
    flood.end()
    assert written < 64 * MIB
    assert log.ended.is_set()


async def test_on_a_full_disk_it_goes_on_listening(tmp_path: Path) -> None:
    (tmp_path / "console.log").symlink_to("/dev/full")
    ours, theirs = socket.socketpair()
    log = BoundedLog(ours, tmp_path / "console.log")
    theirs.setblocking(False)
    await asyncio.get_running_loop().sock_sendall(theirs, os.urandom(MIB))  # more than the socket holds
    assert not log.ended.is_set()
    theirs.close()
    await log.ended.wait()
