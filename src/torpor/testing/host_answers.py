"""How the fake host answers where a plain answer at once does not do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import httpx2
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from torpor.wire.memory import App, MemoryTransport


@dataclass(frozen=True)
class Hold:
    """A request that waits: `reached` is set when it has come, and it goes on after `release`."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        """Let the request go on."""
        self.go.set()


class Lost(Response):
    """No answer at all: the connection ends."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        return


class Streamed(Response):
    """An answer whose parts are sent as they come; the source is closed when the request ends, however it ends."""

    def __init__(self, parts: AsyncIterator[bytes], media_type: str, headers: dict[str, str] | None = None) -> None:
        self.status_code, self.media_type, self.background = 200, media_type, None
        self._parts = parts
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._parts) as parts:  # type: ignore[type-var]  # every source here is a generator
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class Line(httpx2.AsyncBaseTransport):
    """Leads to an application in this process, and fails to connect while that is down."""

    def __init__(self, app: App, is_down: Callable[[], bool]) -> None:
        self._inner = MemoryTransport(app)
        self._is_down = is_down

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._is_down():
            raise httpx2.ConnectError("the host was told to be down", request=request)
        return await self._inner.handle_async_request(request)


def json_answer(model: BaseModel, status: int = 200) -> Response:
    """Return an answer that is all there at once."""
    return Response(model.model_dump_json(), status, media_type="application/json")
