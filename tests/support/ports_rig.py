"""The control plane over a fake host on a real socket, and raw requests to servers in its sandboxes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import httpx2
import uvicorn

from control_rig import KEY, Rig, control_rig
from torpor.control.api.app import create_app
from torpor.control.front import front
from torpor.control.proxy.addresses import Domain

IN_GUEST = 8080
PATIENCE_S = 30


@dataclass(frozen=True)
class PortsRig:
    """A rig that listens on `port` of 127.0.0.1. `http` sends to it, and follows no redirects."""

    rig: Rig
    port: int
    http: httpx2.AsyncClient

    def by_host(self, sandbox: str, port: int = IN_GUEST) -> str:
        """Return the host of a server in a sandbox."""
        return f"{port}-{sandbox}.localhost:{self.port}"

    def by_path(self, sandbox: str, port: int = IN_GUEST) -> str:
        """Return the path of a server in a sandbox, without a slash at its end."""
        return f"/v1/sandboxes/{sandbox}/proxy/{port}"

    def key(self) -> dict[str, str]:
        """Return the header that brings the server's own key."""
        return {"authorization": f"Bearer {KEY}"}

    async def linked(self, sandbox: str, **more: str) -> dict[str, str]:
        """Return headers by which a request is for the server in a sandbox, with a link, and `more` of them."""
        return {"host": self.by_host(sandbox), "x-torpor-token": await self.token(sandbox), **more}

    async def token(self, sandbox: str, port: int = IN_GUEST, seconds: int = 3600) -> str:
        """Return a link's token."""
        answer = await self.rig.http.post(
            f"/v1/sandboxes/{sandbox}/ports/{port}/link", json={"expires_seconds": seconds}
        )
        assert answer.status_code == 201, answer.text
        token: str = answer.json()["token"]
        return token

    @asynccontextmanager
    async def serves(self, port: int) -> AsyncIterator[str]:
        """Yield a sandbox in which the server on a port of this machine listens at IN_GUEST."""
        self.rig.host.servers[IN_GUEST] = port
        yield await self.rig.create()

    async def raw(self, data: bytes) -> bytes:
        """Send bytes to the server as they are, and return all it answers until it closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            async with asyncio.timeout(PATIENCE_S):
                return await reader.read()
        finally:
            writer.transport.abort()


@asynccontextmanager
async def ports_rig(domain: Domain | None = None) -> AsyncIterator[PortsRig]:
    """Serve a rig while the block lasts."""
    async with control_rig(ports_domain=domain) as rig:
        try:
            async with (
                served(front(create_app(rig.plane, KEY), timeout_graceful_shutdown=1)) as port,
                httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http,
            ):
                yield PortsRig(rig, port, http)
        finally:
            await rig.plane.chores.aclose()


@asynccontextmanager
async def served(config: uvicorn.Config) -> AsyncIterator[int]:
    """Run a server while the block lasts, and yield its port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        server = _Quiet(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await server.ready.wait()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


class _Quiet(uvicorn.Server):
    """Says when it listens, and takes no signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
