"""The servers in the fake host's guests: each is a server on this machine's loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from torpor import errors
from torpor.kit.race import Overtaken, race
from torpor.testing.host_answers import json_answer
from torpor.testing.host_machines import FakeMachine
from torpor.wire import duplex, host

Act = Callable[[Request], Coroutine[Any, Any, Response]]


class PortAnswers:
    """What the fake host answers about servers. `servers`: the port on this machine for each port in a guest."""

    def __init__(self, machine_of: Callable[[Request], FakeMachine], servers: dict[int, int]) -> None:
        self._machine_of = machine_of
        self._servers = servers

    def routes(self, one: str) -> list[tuple[str, str, str, Act]]:
        """Return the rows of the host's table."""
        return [("GET", f"{one}/ports", "ports", self._ports), ("POST", f"{one}/ports/{{port}}", "dial", self._dial)]

    async def _ports(self, request: Request) -> Response:
        self._machine_of(request)
        items = [host.Port(port=port, address="127.0.0.1", process="fake") for port in sorted(self._servers)]
        return json_answer(host.PortList(items=items))

    async def _dial(self, request: Request) -> Response:
        machine, port = self._machine_of(request), int(request.path_params["port"])
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._servers[port])
        except (KeyError, ConnectionRefusedError) as error:
            raise errors.PortClosed(f"nobody listens on port {port} in the sandbox") from error
        return _Dialled(_Connection(machine, reader, writer))


class _Connection:
    """A connection that stands still while its machine does, and ends with it."""

    def __init__(self, machine: FakeMachine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.machine, self._reader, self.writer = machine, reader, writer

    async def receive(self) -> bytes:
        try:
            data = await self._reader.read(65536)
        except ConnectionError as error:
            raise errors.Failed("the server broke the connection off") from error
        await self.machine.goes.wait()
        return data

    async def send(self, data: bytes) -> bool:
        await self.machine.goes.wait()
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError:
            return False
        return True

    def end(self) -> None:
        with suppress(OSError):
            self.writer.write_eof()


class _Dialled(Response):
    def __init__(self, connection: _Connection) -> None:
        super().__init__()
        self._connection = connection

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(Overtaken, errors.Failed):  # an answer that does not end is one that is broken off
                await race(duplex.answer(self._connection, receive, send), self._connection.machine.died.wait())
        finally:
            self._connection.writer.transport.abort()
