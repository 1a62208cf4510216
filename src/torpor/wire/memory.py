"""An HTTP transport that calls an ASGI application in this process, streaming both ways.

httpx2's own ASGITransport collects the whole answer before it returns, so a command's output would arrive at its end
only. This one hands chunks over as they are produced, one at a time, so a slow reader slows the producer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

import httpx2

from torpor.kit.shielded import wait_ended

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


class MemoryTransport(httpx2.AsyncBaseTransport):
    """Serves requests by `app`. Each request runs as one task, owned by its response and ended when that is closed.

    An application that raises, or returns without an answer, looks as it would over a socket: the request fails with
    `httpx2.RemoteProtocolError`, whose cause is what it raised. A request body that raises is a disconnect for the
    application, and the caller gets what it raised. Of a request's timeouts the one for reading is kept: one that waits
    longer for the answer to begin, after its body has been taken, or for more of it, fails with `httpx2.ReadTimeout`.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Start the request and return when the application has begun to answer."""
        call = _Call(self._app, request)
        try:
            start = await call.wait_started()
        except BaseException:
            await call.aclose()
            raise
        return httpx2.Response(start["status"], headers=start.get("headers", []), stream=call)


class _Call(httpx2.AsyncByteStream):
    """One request under way, and the body of its response."""

    def __init__(self, app: App, request: httpx2.Request) -> None:
        if not isinstance(request.stream, httpx2.AsyncByteStream):
            raise TypeError("the body of an asynchronous request has to be an asynchronous stream")
        self._body = request.stream.__aiter__()
        self._body_ended = False
        self._body_failure: Exception | None = None
        self._app_failure: Exception | None = None
        self._answered = False  # the application has handed over its last message
        self._closed = False  # nobody takes messages any more
        self._client_gone = asyncio.Event()
        # One message at a time: the application waits in `send` until the reader has taken the last one.
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue(maxsize=1)
        self._read_s: float | None = request.extensions.get("timeout", {}).get("read")
        # When the application last waited for the request's body, whose sender takes its own time.
        self._took_at = 0.0
        self._task = asyncio.create_task(self._run(app, _scope(request)))

    async def wait_started(self) -> Message:
        """Return the message that begins the answer."""
        message = await self._next()
        if self._body_failure is not None:
            raise self._body_failure
        if message is None:
            raise httpx2.RemoteProtocolError("the application ended without an answer") from self._app_failure
        return message

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self._next()) is not None:
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body", False):
                return
        if self._body_failure is not None:
            raise self._body_failure
        raise httpx2.RemoteProtocolError("the application broke off its answer") from self._app_failure

    async def _next(self) -> Message | None:
        """Return the next message, None at the end. Raises ReadTimeout."""
        if self._read_s is None:
            return await self._messages.get()
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (left_s := max(began, self._took_at) + self._read_s - loop.time()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, self._read_s)):
                    return await self._messages.get()
        raise httpx2.ReadTimeout(f"the application said nothing for {self._read_s} s")

    async def aclose(self) -> None:
        """End the request: the application sees a disconnect and, unless it has answered in full, is cancelled."""
        self._client_gone.set()
        self._closed = True
        if not self._answered:
            self._task.cancel()
        while not self._messages.empty():  # wakes an application that waits to hand over a message
            self._messages.get_nowait()
        await wait_ended(self._task)
        if isinstance(self._body, AsyncGenerator):  # the application may not have read it to its end
            await self._body.aclose()

    async def _run(self, app: App, scope: Message) -> None:
        try:
            await app(scope, self._receive, self._send)
        except Exception as error:
            self._app_failure = error
        finally:
            if not self._closed:
                await self._messages.put(None)

    async def _send(self, message: Message) -> None:
        if self._closed:
            raise OSError("the client is gone")
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._answered = True
        await self._messages.put(message)

    async def _receive(self) -> Message:
        if self._body_ended:
            await self._client_gone.wait()
            return {"type": "http.disconnect"}
        self._took_at = math.inf
        try:
            return {"type": "http.request", "body": await anext(self._body), "more_body": True}
        except StopAsyncIteration:
            self._body_ended = True
            return {"type": "http.request", "body": b"", "more_body": False}
        except Exception as error:
            self._body_ended = True
            self._body_failure = error
            self._client_gone.set()
            return {"type": "http.disconnect"}
        finally:
            self._took_at = asyncio.get_running_loop().time()


def _scope(request: httpx2.Request) -> Message:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.split(b"?")[0],
        "query_string": request.url.query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "server": (request.url.host, request.url.port),
        "client": ("memory", 0),
    }
