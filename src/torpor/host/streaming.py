"""A response made while it is sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from torpor.errors import TorporError

_log = structlog.get_logger(__name__)


class Stream(Response):
    """Sends what a generator yields, and closes the generator however the sending ends.

    The first chunk is awaited before the answer begins, so that an error before it becomes an error's answer.
    """

    def __init__(self, chunks: AsyncGenerator[bytes, None], media_type: str) -> None:
        super().__init__(media_type=media_type)
        self._chunks = chunks
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        async with aclosing(self._chunks):
            first = await anext(self._chunks, b"")
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            try:
                async for chunk in self._chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except TorporError as error:
                # No status can say it any more; an answer that ends without its last message is a broken one.
                _log.warning("answer broken off", path=scope["path"], error=error.message)
                return
            await send({"type": "http.response.body", "body": b"", "more_body": False})
