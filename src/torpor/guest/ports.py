"""Servers in a guest: who listens, and connections to them."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import BaseModel, ConfigDict, Field

from torpor.errors import OutcomeUnknown
from torpor.guest.answers import Moved, read
from torpor.guest.asking import Asking
from torpor.guest.calls import Call
from torpor.guest.refusals import clean
from torpor.wire.host import Port

_MOST_PORTS = 512
_MAX_NAME = 64
_MOST_PID = 2**31


class _Told(BaseModel):
    """What a guest tells of who listens."""

    model_config = ConfigDict(strict=True)
    ports: list[Port] = Field(max_length=_MOST_PORTS)


class Connection:
    """One connection to a server in a guest, as `wire.duplex.Connection`. It outlasts a hibernation of the guest."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._received = 0

    async def receive(self) -> bytes:
        """Return the next bytes of the server's, b"" once it has ended what it sends.

        Raises Failed if it broke off instead, OutcomeUnknown if the line to the guest was lost.
        """
        item = await self._call.receive()
        if item is not None:
            self._received += len(item[1])
            return item[1]
        if read(Moved, await self._call.result()).bytes != self._received:
            raise OutcomeUnknown("the guest sent another count of bytes than it says")
        return b""

    async def send(self, data: bytes) -> bool:
        """Send bytes as the server reads them. Returns False, with some not sent, once the connection is over."""
        return await self._call.send(data)

    def end(self) -> None:
        """Say that no more bytes come: the server reads its end of file, and may still answer."""
        self._call.end_input()


class Ports(Asking):
    """What can be asked of a guest's agent about servers in the guest."""

    @asynccontextmanager
    async def dial(self, port: int) -> AsyncIterator[Connection]:
        """Connect to a port of the guest's loopback while the block lasts; leaving it closes the connection.

        Raises PortClosed if nobody listens there, Busy if the server takes no new connection.
        """
        async with self._call({"op": "dial", "port": port}, connects=True) as call:
            await call.ready()
            yield Connection(call)

    async def ports(self) -> list[Port]:
        """Return the TCP ports on which somebody in the guest listens, by number; at most 512."""
        told = read(_Told, await self._ask({"op": "ports"})).ports
        for port in told:
            if not _is_address(port.address) or not (port.pid is None or 0 < port.pid < _MOST_PID):
                raise OutcomeUnknown("the guest's agent told of a server that cannot be")
            port.process = None if port.process is None else clean(port.process)[:_MAX_NAME]
        return told


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
