"""How the public API is served over sockets: what every server of it has in common, in tests as in earnest."""

from __future__ import annotations

from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from torpor.control.proxy.websockets import MAX_MESSAGE
from torpor.wire.memory import App, Message

# So much may come of a request, and a little more, before it gets any further: its head, or what follows its body.
MAX_HEAD = 64 * 1024
# Longer than clients keep an idle connection, so that none of them runs into one that is just being closed.
KEEP_ALIVE_S = 75


def front(app: App, **more: Any) -> uvicorn.Config:
    """Return the configuration of a server for an application, with `more` of uvicorn's own settings."""
    return uvicorn.Config(
        _Quietly(app),
        http=_BoundedHead,
        ws=_PatientWebSocket,
        ws_max_size=MAX_MESSAGE,
        # What is passed on between a client and a server in a sandbox would be compressed on one side only.
        ws_per_message_deflate=False,
        lifespan="off",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        server_header=False,
        # Whoever asks could write into these headers what it likes, and would be somebody else in limits and audit.
        proxy_headers=False,
        **more,
    )


class _BoundedHead(HttpToolsProtocol):
    """Refuses a request whose head has no end, which uvicorn would keep whole, from whoever asks.

    Trailers are dropped: uvicorn would add them to the headers, which have been looked at by then.
    """

    _in_head = False
    _progressed = False
    _since_progress = 0

    def data_received(self, data: bytes) -> None:
        self._progressed = False
        super().data_received(data)
        self._since_progress = 0 if self._progressed else self._since_progress + len(data)
        if self._since_progress <= MAX_HEAD or self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self.send_400_response(f"The head of a request has at most {MAX_HEAD} bytes.")
        else:  # an answer is under way on this connection
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._in_head = self._progressed = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._progressed = False, True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._progressed = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._progressed = True
        super().on_message_complete()


class _PatientWebSocket(WebSocketsSansIOProtocol):
    """Does not take a client for gone while what it has sent is not taken: its answer to a ping is behind that.

    Uvicorn would, and so end what a client sends much to that is slow to read, or asleep. One that is gone indeed is
    noticed by the connection then, which is not answered any more.
    """

    def keepalive_timeout(self) -> None:
        if self.read_paused:
            self._wait_for_pong()
        else:
            super().keepalive_timeout()

    async def receive(self) -> Any:
        message = await super().receive()
        if self.pong_timer is not None:  # it has just been heard, and what comes next is only being read now
            self.pong_timer.cancel()
            self._wait_for_pong()
        return message

    def _wait_for_pong(self) -> None:
        if self.ping_timeout is not None:
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)


class _Quietly:
    """Keeps uvicorn from logging a WebSocket that was refused with an answer as one that was left without any."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = False

        async def noting(message: Message) -> None:
            nonlocal refused
            await send(message)
            refused = message["type"] == "websocket.http.response.body" and not message.get("more_body", False)

        await self._app(scope, receive, noting)
        if refused:
            raise ClientDisconnected  # what uvicorn takes for an end of its own making, as it is
