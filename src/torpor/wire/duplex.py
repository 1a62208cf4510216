"""One connection as one HTTP exchange: while it lasts, the body of the request is what one end sends, and the body of
the answer what the other does.

The answer begins as soon as the connection is there. It ends well when the other end has ended what it sends, and
breaks off if that broke off. The end of the request's body is passed on as the end of what is sent; whoever hangs up
closes the connection. Both ends have to be able to answer a request that is still being sent, as `wire.memory` is, and
HTTP/2 would be.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Protocol

from torpor.kit.race import Overtaken, race

Message = MutableMapping[str, Any]
MEDIA_TYPE = "application/vnd.torpor.connection"
_START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", MEDIA_TYPE.encode())],
}


class Connection(Protocol):
    """A connection, as whoever has opened it uses it."""

    async def receive(self) -> bytes:
        """Return the next bytes, b"" once the other end has ended what it sends. Raises if it broke off."""

    async def send(self, data: bytes) -> bool:
        """Send bytes as the other end takes them. Returns False, with some not sent, once the connection is over."""

    def end(self) -> None:
        """Say that no more bytes come."""


async def answer(
    connection: Connection, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Answer a request, as an ASGI application, with a connection that is there.

    Returns with the answer unfinished, so that it counts as broken off, if the client hangs up; raises what `receive`
    of the connection raises.
    """
    await send(_START)
    with suppress(Overtaken):
        await race(_send_all(connection, send), _pass_on(connection, receive))


async def _send_all(connection: Connection, send: Callable[[Message], Awaitable[None]]) -> None:
    while chunk := await connection.receive():
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _pass_on(connection: Connection, receive: Callable[[], Awaitable[Message]]) -> None:
    """Return when the client has hung up."""
    while (message := await receive())["type"] != "http.disconnect":
        if body := message.get("body"):
            await connection.send(body)
        if not message.get("more_body", False):
            connection.end()


class Outgoing:
    """The body of such a request: what `send` is given, one piece at a time."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)
        self._over = asyncio.Event()
        self._ended = False

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield what is sent, until its end."""
        while (piece := await self._pieces.get()) is not None:
            yield piece
            self._pieces.task_done()

    async def send(self, data: bytes) -> bool:
        """Return True once the other side has dealt with the bytes, False if the exchange is over."""
        if self._ended or self._over.is_set():
            return False
        with suppress(Overtaken):
            await race(self._given(data), self._over.wait())
            return True
        return False

    async def _given(self, data: bytes) -> None:
        await self._pieces.put(data)
        await self._pieces.join()

    def end(self) -> None:
        """Say that no more bytes come; to be called while no `send` is under way."""
        if not self._ended and not self._over.is_set():
            self._ended = True
            self._pieces.put_nowait(None)

    def close(self) -> None:
        """The exchange is over: end what still waits."""
        self._over.set()


class Exchange:
    """The connection that an exchange is, as its client uses it."""

    def __init__(self, outgoing: Outgoing, incoming: AsyncIterator[bytes]) -> None:
        self._outgoing, self._incoming = outgoing, incoming

    async def receive(self) -> bytes:
        """Return the next bytes, b"" once the other end has ended what it sends. Raises if it broke off."""
        try:
            return await anext(self._incoming, b"")
        except BaseException:
            self._outgoing.close()
            raise

    async def send(self, data: bytes) -> bool:
        """Send bytes as the other end takes them. Returns False, with some not sent, once the connection is over."""
        return await self._outgoing.send(data)

    def end(self) -> None:
        """Say that no more bytes come."""
        self._outgoing.end()
