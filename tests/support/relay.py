"""A guest's port: the guest's end stays open while hosts come and go, and nothing that it carries is lost."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from torpor.kit.shielded import wait_ended

# Small and odd, so that a connection usually ends in the middle of a frame, with more of it to come.
_STEP = 3001


class Relay:
    """Passes bytes between a guest's socket, which belongs to it from now on, and one host at a time."""

    def __init__(self, guest: socket.socket) -> None:
        guest.setblocking(False)
        self._guest = guest
        self._host: socket.socket | None = None
        self._kept = b""
        self._pumps: list[asyncio.Task[None]] = []

    def connect(self) -> socket.socket:
        """Return a new host's end. What was kept back from the one before comes first."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._host = ours
        self._pumps = [asyncio.create_task(self._to_host(ours)), asyncio.create_task(self._to_guest(ours))]
        return theirs

    async def end(self, most: int = 0) -> None:
        """Close the host's connection, as the end of a machine does.

        Of what the guest has said by now the host still gets at most so many bytes, wherever they end.
        """
        await self._stop_pumps()
        assert self._host is not None
        with suppress(BlockingIOError):
            self._kept += self._guest.recv(max(most - len(self._kept), 1))
        await asyncio.get_running_loop().sock_sendall(self._host, self._kept[:most])
        self._kept = self._kept[most:]
        self._host.close()
        self._host = None

    async def aclose(self) -> None:
        """Close both ends."""
        await self._stop_pumps()
        if self._host is not None:
            self._host.close()
        self._guest.close()

    async def _stop_pumps(self) -> None:
        for pump in self._pumps:
            pump.cancel()
            with suppress(OSError):
                await wait_ended(pump)
        self._pumps = []

    async def _to_host(self, host: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._kept:
                self._kept = await loop.sock_recv(self._guest, _STEP)
                if not self._kept:
                    return
            await _writable(host)
            with suppress(BlockingIOError):
                self._kept = self._kept[host.send(self._kept) :]

    async def _to_guest(self, host: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):
            while data := await loop.sock_recv(host, 65536):
                await loop.sock_sendall(self._guest, data)


async def _writable(sock: socket.socket) -> None:
    """Return when a socket takes bytes."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(sock)
