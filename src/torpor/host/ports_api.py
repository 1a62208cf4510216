"""Servers in a guest on the host agent's side of the wire: `ports` of `wire/host.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from torpor.errors import Busy, NotFound, TorporError
from torpor.host.flow.ask import guest_of
from torpor.host.host import Host
from torpor.host.parsing import json_answer, sandbox_of
from torpor.model.ids import SandboxId
from torpor.wire import duplex
from torpor.wire.host import PortList

_log = structlog.get_logger(__name__)
# Connections to the servers of one sandbox at a time. Each may hold 256 KiB of the guest agent's memory, and takes one
# of the thousand calls that the line to a guest can carry.
MOST_CONNECTIONS = 128


def port_routes(host: Host, sandbox: str) -> list[Route]:
    """Return the routes below a sandbox's path that have to do with servers in it."""
    api = _Api(host)
    return [
        Route(f"{sandbox}/ports", api.list_all, methods=["GET"]),
        Route(f"{sandbox}/ports/{{port}}", api.dial, methods=["POST"]),
    ]


class _Api:
    """One method per row of the table in `wire/host.py` that has to do with servers in a guest."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._open: Counter[SandboxId] = Counter()

    async def list_all(self, request: Request) -> Response:
        async with guest_of(self._host, sandbox_of(request)) as guest:
            return json_answer(PortList(items=await guest.ports()))

    async def dial(self, request: Request) -> Response:
        return _Dialled(self, sandbox_of(request), _port_of(request))

    async def connect(self, sandbox: SandboxId, port: int, receive: Receive, send: Send) -> None:
        """Connect a request with a server. Raises as `Ports.dial`, and Busy for a connection too many."""
        with self._counted(sandbox):
            async with guest_of(self._host, sandbox) as guest, guest.dial(port) as connection:
                await duplex.answer(connection, receive, send)

    @contextmanager
    def _counted(self, sandbox: SandboxId) -> Iterator[None]:
        if self._open[sandbox] >= MOST_CONNECTIONS:
            raise Busy(f"{MOST_CONNECTIONS} connections to the sandbox {sandbox} are open already, which is the most")
        self._open[sandbox] += 1
        try:
            yield
        finally:
            self._open[sandbox] -= 1
            if not self._open[sandbox]:
                del self._open[sandbox]


class _Dialled(Response):
    """The answer that a connection is."""

    def __init__(self, api: _Api, sandbox: SandboxId, port: int) -> None:
        super().__init__()
        self._api, self._sandbox, self._port = api, sandbox, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noting(message: duplex.Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._api.connect(self._sandbox, self._port, receive, noting)
        except TorporError as error:
            if not begun:  # the answer's status can still say it
                raise
            _log.info("connection broken off", path=scope["path"], error=error.message)


def _port_of(request: Request) -> int:
    text = request.path_params["port"]
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise NotFound(f"there is no port {text!r}")
    return int(text)
