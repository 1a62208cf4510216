"""When the server takes a WebSocket's client for gone, and when it only waits for whom its bytes are for."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect

from ports_rig import PATIENCE_S, served
from torpor.control.front import front

PING_S = 0.1


async def test_a_client_is_not_gone_while_nobody_takes_what_it_has_sent() -> None:
    taking = asyncio.Event()

    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await taking.wait()
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})

    config = front(echo, timeout_graceful_shutdown=1, ws_ping_interval=PING_S, ws_ping_timeout=PING_S)
    async with served(config) as port, connect(f"ws://127.0.0.1:{port}/", proxy=None) as line:
        for word in ("one", "two"):
            await line.send(word)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10 * PING_S):
                await line.wait_closed()
        taking.set()
        async with asyncio.timeout(PATIENCE_S):
            assert [await line.recv(), await line.recv()] == ["one", "two"]


async def test_a_client_that_answers_no_ping_is_gone() -> None:
    gone = asyncio.Event()

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass
        gone.set()

    config = front(wait, timeout_graceful_shutdown=1, ws_ping_interval=PING_S, ws_ping_timeout=PING_S)
    async with served(config) as port, connect(f"ws://127.0.0.1:{port}/", proxy=None) as line:
        line.transport.pause_reading()
        async with asyncio.timeout(PATIENCE_S):
            await gone.wait()
        line.transport.abort()
