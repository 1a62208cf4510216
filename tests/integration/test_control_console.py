"""The console of a sandbox's machine through the API, followed as it grows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from control_rig import NOBODY, PATIENCE_S, Rig, control_rig, mine
from torpor.control.service.console import LOOK_S, MOST_LINE, follow_console
from torpor.errors import HostUnreachable


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


async def test_lines_are_told_as_they_come_and_end_with_the_sandbox(rig: Rig) -> None:
    made = await rig.create()
    rig.host.consoles[made] = b"one\r\ntw"
    async with asyncio.timeout(PATIENCE_S):
        lines = follow_console(rig.plane, mine(made))
        assert await anext(lines) == "one"
        coming = asyncio.ensure_future(anext(lines))
        await rig.clock.wait_sleepers(1)
        rig.host.consoles[made] += b"o\nthree"
        await rig.clock.jump(LOOK_S)
        assert await coming == "two"
        rest = asyncio.ensure_future(anext(lines))
        await rig.clock.wait_sleepers(1)
        await rig.http.delete(f"/v1/sandboxes/{made}")
        await rig.clock.jump(LOOK_S)
        assert await rest == "three"
        with pytest.raises(StopAsyncIteration):
            await anext(lines)


async def test_a_line_may_be_cut_anywhere_and_is_told_whole(rig: Rig) -> None:
    made = await rig.create()
    whole = "é\n" + "x" * (MOST_LINE + 5) + "\n\nend"
    data = whole.encode()
    rig.host.consoles[made] = data[:1]
    heard: list[str] = []

    async def listen() -> None:
        async for line in follow_console(rig.plane, mine(made)):
            heard.append(line)

    async with asyncio.timeout(PATIENCE_S):
        listening = asyncio.create_task(listen())
        for end in (2, 100, len(data)):
            await rig.clock.wait_sleepers(1)
            rig.host.consoles[made] = data[:end]
            await rig.clock.jump(LOOK_S)
        await rig.clock.wait_sleepers(1)
        await rig.http.delete(f"/v1/sandboxes/{made}")
        await rig.clock.jump(LOOK_S)
        await listening
    assert heard == ["é", "x" * MOST_LINE, "x" * 5, "", "end"]


async def test_a_host_that_is_away_for_a_while_is_asked_again(rig: Rig) -> None:
    made = await rig.create()
    rig.host.fail("log_part", HostUnreachable("away"))
    async with asyncio.timeout(PATIENCE_S):
        first = asyncio.ensure_future(anext(follow_console(rig.plane, mine(made))))
        await rig.clock.wait_sleepers(1)
        await rig.clock.jump(LOOK_S)
        assert await first == f"{made} login:"


async def test_a_stream_has_a_json_object_in_each_event_and_wakes_nothing(rig: Rig) -> None:
    made = await rig.create()
    await rig.post(made, "hibernate")
    rig.host.consoles[made] = "ä\n\x1b[1m\n".encode()
    url = f"/v1/sandboxes/{made}/logs?follow=1&stream=both"
    events: list[str] = []
    async with asyncio.timeout(PATIENCE_S), rig.http.stream("GET", url) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        async for text in answer.aiter_lines():
            assert text.isascii()
            if text.startswith("data: "):
                events.append(json.loads(text.removeprefix("data: "))["line"])
            if len(events) == 2:
                break
    assert events == ["ä", "\x1b[1m"]
    assert await rig.status(made) == "hibernated"


async def test_nobodys_console_is_not_there(rig: Rig) -> None:
    for follow in ("true", "false"):
        assert (await rig.http.get(f"/v1/sandboxes/{NOBODY}/logs?follow={follow}")).status_code == 404
