"""Small servers on this machine's loopback, which stand for servers in a guest."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve, address: str = "127.0.0.1") -> AsyncIterator[int]:
    """Serve every connection to a free port, which is yielded, while the block lasts; then all are broken off."""
    open_now: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now.add(task)
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return  # the other end has gone, or the test is over
        finally:
            open_now.discard(task)
            if not writer.is_closing():
                writer.transport.abort()

    server = await asyncio.start_server(one, address, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(open_now):
            task.cancel()
        if open_now:
            await asyncio.wait(list(open_now))
        await server.wait_closed()


@asynccontextmanager
async def echo_server(address: str = "127.0.0.1") -> AsyncIterator[int]:
    """Serve a port at which everything is sent back."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with serving(echo, address) as port:
        yield port


def closed_port() -> int:
    """Return the number of a port at which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    return port


async def request_of(reader: asyncio.StreamReader) -> bytes:
    """Return the head of a request, and its body as far as Content-Length tells one."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return head + await reader.readexactly(int(line.split(b":")[1]))
    return head


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Serve a port at which every request gets the same bytes; yields it and the requests that came."""
    came: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(await request_of(reader))
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with serving(serve) as port:
        yield port, came
