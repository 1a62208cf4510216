"""How the fake host answers where a plain answer at once does not do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


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
