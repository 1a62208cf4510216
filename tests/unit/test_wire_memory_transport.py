"""The transport that calls an application in this process: it behaves as a socket would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import pytest

from torpor.wire.memory import App, MemoryTransport, Message

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
START: Message = {"type": "http.response.start", "status": 200, "headers": [(b"x-a", b"b")]}


def body(data: bytes, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def client_of(app: App) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=MemoryTransport(app), base_url="http://memory")


async def test_a_request_arrives_and_its_answer_returns() -> None:
    seen: dict[str, Any] = {}

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        seen.update(scope)
        message = await receive()
        await send(START)
        await send(body(message["body"]))

    async with client_of(app) as client:
        answer = await client.post("/a%20b?c=d", content=b"hello", headers={"X-Name": "v"})
    assert (answer.status_code, answer.content, answer.headers["x-a"]) == (200, b"hello", "b")
    assert (seen["method"], seen["path"], seen["raw_path"]) == ("POST", "/a b", b"/a%20b")
    assert seen["query_string"] == b"c=d"
    assert (b"x-name", b"v") in seen["headers"]


async def test_chunks_arrive_as_they_are_sent_and_a_slow_reader_slows_the_sender() -> None:
    sent: list[int] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send(START)
        for number in range(100):
            await send(body(bytes([number]), more=True))
            sent.append(number)
        await send(body(b""))

    async with client_of(app) as client, client.stream("GET", "/") as answer:
        chunks = answer.aiter_raw()
        assert await anext(chunks) == b"\x00"
        assert len(sent) <= 2
        assert len([chunk async for chunk in chunks]) == 99


@pytest.mark.parametrize("begun", [False, True])
async def test_an_application_that_raises_looks_like_a_broken_connection(begun: bool) -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if begun:
            await send(START)
            await send(body(b"part", more=True))
        raise KeyError("inside")

    async with client_of(app) as client:
        with pytest.raises(httpx2.RemoteProtocolError) as broken:
            await client.get("/")
    assert isinstance(broken.value.__cause__, KeyError)


@pytest.mark.parametrize("begun", [False, True])
async def test_an_application_that_returns_too_early_looks_like_a_broken_connection(begun: bool) -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if begun:
            await send(START)

    async with client_of(app) as client:
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get("/")


async def test_closing_an_answer_early_ends_the_application() -> None:
    ended = asyncio.Event()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        try:
            await send(START)
            await send(body(b"x", more=True))
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with client_of(app) as client, client.stream("GET", "/"):
        pass
    assert ended.is_set()


async def test_cancelling_a_request_ends_the_application_before_it_returns() -> None:
    inside, cleaned = asyncio.Event(), asyncio.Event()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    async with client_of(app) as client:
        task = asyncio.create_task(client.get("/"))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert cleaned.is_set()


async def test_an_application_that_has_answered_in_full_is_not_cancelled_at_its_end() -> None:
    finished = asyncio.Event()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send(START)
        await send(body(b"all"))
        await asyncio.sleep(0)
        finished.set()

    async with client_of(app) as client:
        assert (await client.get("/")).content == b"all"
    assert finished.is_set()


async def test_a_body_that_breaks_off_is_a_disconnect_there_and_the_error_here() -> None:
    received: list[Message] = []

    async def broken() -> AsyncIterator[bytes]:
        yield b"first"
        raise OSError("the sender is gone")

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        while not received or received[-1]["type"] != "http.disconnect":
            received.append(await receive())

    async with client_of(app) as client:
        with pytest.raises(OSError, match="the sender is gone"):
            await client.put("/", content=broken())
    assert [message["type"] for message in received] == ["http.request", "http.disconnect"]


async def test_an_application_may_answer_without_reading_the_body() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x"

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        await send(START)
        await send(body(b"enough"))

    async with client_of(app) as client:
        assert (await client.put("/", content=endless())).content == b"enough"


READ = httpx2.Timeout(None, read=0.05)


async def test_an_answer_that_does_not_begin_is_given_up_after_the_read_timeout() -> None:
    over = asyncio.Event()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            over.set()

    async with client_of(app) as client:
        with pytest.raises(httpx2.ReadTimeout):
            await client.get("/", timeout=READ)
        assert over.is_set()


async def test_an_answer_that_does_not_go_on_is_given_up_after_the_read_timeout() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send(START)
        await send(body(b"one", more=True))
        await asyncio.Event().wait()

    async with client_of(app) as client, client.stream("GET", "/", timeout=READ) as answer:
        chunks = answer.aiter_raw()
        assert await anext(chunks) == b"one"
        with pytest.raises(httpx2.ReadTimeout):
            await anext(chunks)


async def test_a_request_whose_sender_takes_its_time_is_not_given_up() -> None:
    async def slowly() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b"a"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.04)

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await send(START)
        await send(body(b"all"))

    async with client_of(app) as client:
        assert (await client.put("/", content=slowly(), timeout=httpx2.Timeout(None, read=0.1))).content == b"all"
