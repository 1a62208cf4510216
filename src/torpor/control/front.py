"""How the public API is served over sockets: what every server of it has in common, in tests as in earnest."""

from __future__ import annotations

from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from torpor.control.proxy.websockets import MAX_MESSAGE
from torpor.wire.memory import App, Message


def front(app: App, **more: Any) -> uvicorn.Config:
    """Return the configuration of a server for an application, with `more` of uvicorn's own settings."""
    return uvicorn.Config(
        _Quietly(app),
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=MAX_MESSAGE,
        # What is passed on between a client and a server in a sandbox would be compressed on one side only.
        ws_per_message_deflate=False,
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        # Whoever asks could write into these headers what it likes, and would be somebody else in limits and audit.
        proxy_headers=False,
        **more,
    )


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
