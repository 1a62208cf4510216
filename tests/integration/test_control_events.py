"""What the API tells of events: in pages, and as a stream that goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from control_rig import NOBODY, PATIENCE_S, Rig, control_rig, mine
from torpor.control.forgetting import forget
from torpor.control.reconcile import reconcile
from torpor.control.service.events import follow
from torpor.control.service.plane import DEFAULT_WORKSPACE
from torpor.control.store.contract import Event, EventListing, NewEvent
from torpor.control.store.rules import KEEP_EVENTS
from torpor.errors import Failed
from torpor.model.ids import WorkspaceId
from torpor.testing.store import MemoryStore


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


async def page(rig: Rig, sandbox_id: str | None = None, **query: Any) -> Any:
    path = "/v1/events" if sandbox_id is None else f"/v1/sandboxes/{sandbox_id}/events"
    answer = await rig.http.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def passages(shown: Any) -> list[tuple[str, str, str]]:
    states = [item["data"] for item in shown["items"] if item["type"] == "state"]
    return [(data["verb"], data["from"], data["to"]) for data in states]


@asynccontextmanager
async def following(rig: Rig, path: str = "/v1/events", **more: Any) -> AsyncIterator[AsyncIterator[dict[str, str]]]:
    """Follow events while the block lasts: yield each as the lines of a server-sent event."""
    async with rig.http.stream("GET", path, params={"follow": "1", **more.pop("params", {})}, **more) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        async with aclosing(told(answer)) as events:
            yield events


async def told(answer: httpx2.Response) -> AsyncGenerator[dict[str, str], None]:
    held: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if not line and held:
            yield held
            held = {}
        elif line:
            name, _, value = line.partition(": ")
            held |= {name or "beat": value}


async def next_of(events: AsyncIterator[dict[str, str]]) -> dict[str, str]:
    """Return the next event, comments left out."""
    async with asyncio.timeout(PATIENCE_S):
        async for event in events:
            if "id" in event:
                return event
    raise AssertionError("the stream ended")


async def test_every_passage_is_an_event(rig: Rig) -> None:
    made = await rig.create()
    await rig.post(made, "hibernate")
    await rig.post(made, "wake")
    await rig.post(made, "pause")
    await rig.post(made, "resume")
    await rig.http.delete(f"/v1/sandboxes/{made}")
    shown = await page(rig, made)
    assert passages(shown) == [
        ("create", None, "creating"),
        ("create", "creating", "running"),
        ("hibernate", "running", "hibernating"),
        ("hibernate", "hibernating", "hibernated"),
        ("wake", "hibernated", "waking"),
        ("wake", "waking", "running"),
        ("pause", "running", "paused"),
        ("resume", "paused", "running"),
        ("delete", "running", "deleting"),
        ("delete", "deleting", "deleted"),
    ]
    assert {item["sandbox_id"] for item in shown["items"]} == {made}


async def test_a_checkpoint_is_an_event_with_what_it_cost(rig: Rig) -> None:
    made = await rig.create()
    taken = await rig.post(made, "snapshots", name="first")
    (event,) = (await page(rig, made, type="checkpoint"))["items"]
    cost = {name: taken[name] for name in ("kind", "name", "size_bytes", "pause_ms", "took_ms", "dirty_bytes")}
    assert event["data"] == {"snapshot_id": taken["id"], **cost}


async def test_a_loss_is_a_failure_that_names_the_last_snapshot(rig: Rig) -> None:
    made = await rig.create()
    taken = await rig.post(made, "snapshots")
    rig.host.die(made, "killed by signal 9")
    await reconcile(rig.plane)
    shown = await page(rig, made)
    assert passages(shown)[-1] == ("recover", "running", "failed")
    assert shown["items"][-1]["type"] == "failed"
    assert shown["items"][-1]["data"] == {"reason": "killed by signal 9", "last_snapshot": taken["id"]}


async def test_a_page_goes_on_where_the_one_before_ended(rig: Rig) -> None:
    for _ in range(3):
        await rig.create()
    seen: list[str] = []
    cursor = None
    while (shown := await page(rig, limit=2, **({} if cursor is None else {"cursor": cursor})))["items"]:
        seen += [item["cursor"] for item in shown["items"]]
        cursor = shown["next_cursor"]
        assert cursor == seen[-1]
    assert len(seen) == len(set(seen)) == 6
    assert shown == {"items": [], "next_cursor": cursor}
    made = await rig.create()
    assert [item["sandbox_id"] for item in (await page(rig, cursor=cursor))["items"]] == [made, made]


async def test_what_was_noted_before_the_question_is_in_the_answer(rig: Rig) -> None:
    made = await rig.create()
    rig.plane.noter.note("exec", mine(made), command="true", exit_code=0)
    (event,) = (await page(rig, made, type="exec"))["items"]
    assert event["data"] == {"command": "true", "exit_code": 0}


async def test_only_what_comes_from_now_on_can_be_asked_for(rig: Rig) -> None:
    made = await rig.create()
    rig.plane.noter.note("exec", mine(made))
    latest = await page(rig, cursor="latest")
    assert latest["items"] == []
    rig.plane.noter.note("idle", mine(made))
    assert [item["type"] for item in (await page(rig, cursor=latest["next_cursor"]))["items"]] == ["idle"]


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "9" * 19, "\u0661"])
async def test_a_cursor_that_is_none_is_refused(rig: Rig, cursor: str) -> None:
    answer = await rig.http.get("/v1/events", params={"cursor": cursor})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("cursor is not one")


async def test_nobodys_events_are_not_found(rig: Rig) -> None:
    await rig.create()
    assert (await rig.http.get(f"/v1/sandboxes/{NOBODY}/events")).status_code == 404
    elsewhere = EventListing(WorkspaceId("other"))
    assert await rig.store.events(elsewhere) == []


async def test_events_come_as_they_happen_each_with_its_cursor(rig: Rig) -> None:
    made = await rig.create()
    async with following(rig) as events:
        heard = [await next_of(events) for _ in range(2)]
        await rig.post(made, "pause")
        heard.append(await next_of(events))
        rig.plane.noter.note("exec", mine(made), command="echo 'ключ\n\n'")
        await rig.plane.noter.flush()
        heard.append(await next_of(events))
    assert [event["event"] for event in heard] == ["state", "state", "state", "exec"]
    shown = (await page(rig))["items"]
    assert [json.loads(event["data"]) for event in heard] == shown
    assert [event["id"] for event in heard] == [item["cursor"] for item in shown]
    assert heard[-1]["data"].isascii()


async def test_a_stream_that_broke_goes_on_where_it_was(rig: Rig) -> None:
    made = await rig.create()
    async with following(rig) as events:
        first = await next_of(events)
    await rig.post(made, "pause")
    path = f"/v1/sandboxes/{made}/events"
    async with following(rig, path, headers={"last-event-id": first["id"]}, params={"cursor": "0"}) as events:
        rest = [json.loads((await next_of(events))["data"])["data"]["to"] for _ in range(2)]
    assert rest == ["running", "paused"]


async def test_a_stream_leaves_out_what_was_not_asked_for(rig: Rig) -> None:
    other = await rig.create()
    made = await rig.create()
    path = f"/v1/sandboxes/{made}/events"
    async with following(rig, path, params={"type": ["idle", "exec"], "cursor": "latest"}) as events:
        await rig.post(made, "pause")
        rig.plane.noter.note("exec", mine(other))
        rig.plane.noter.note("exec", mine(made))
        rig.plane.noter.note("idle", mine(made))
        await rig.plane.noter.flush()
        assert [(await next_of(events))["event"] for _ in range(2)] == ["exec", "idle"]


async def test_in_silence_a_stream_beats(rig: Rig) -> None:
    async with following(rig) as events:
        assert await anext(events) == {"beat": "beat"}
        await rig.clock.wait_sleepers()
        await rig.clock.jump(5)
        assert await anext(events) == {"beat": "beat"}


async def test_many_followers_miss_nothing_and_hear_nothing_twice_while_much_happens(rig: Rig) -> None:
    made = await rig.create()
    start = await rig.store.last_event()

    async def hear(count: int) -> list[int]:
        listing = EventListing(mine(made).workspace, after=start, limit=7)
        heard: list[int] = []
        async with aclosing(follow(rig.plane, listing)) as events:
            async for event in events:
                heard.append(event.number)
                if len(heard) == count:
                    return heard
        raise AssertionError("the stream ended")

    async def cause(count: int) -> None:
        for number in range(count):
            rig.plane.noter.note("exec", mine(made), number=number)
            if number % 3 == 0:
                await rig.post(made, "pause" if number % 2 == 0 else "resume")
            await asyncio.sleep(0)

    writing = asyncio.create_task(rig.plane.noter.write())
    async with asyncio.timeout(PATIENCE_S):
        heard, *_ = await asyncio.gather(
            asyncio.gather(*(hear(80) for _ in range(5))),
            cause(60),
        )
    writing.cancel()
    await asyncio.wait([writing])
    expected = [event.number for event in await rig.store.events(EventListing(mine(made).workspace, after=start))]
    assert heard == [expected[:80]] * 5
    assert len(expected) == 80


async def test_events_are_forgotten_after_a_while(rig: Rig) -> None:
    made = await rig.create()
    await rig.clock.jump((KEEP_EVENTS - timedelta(minutes=30)).total_seconds())
    async with rig.working(forget(rig.plane)):
        assert len((await page(rig, made))["items"]) == 2
        await rig.clock.jump(3600)
        assert (await page(rig, made))["items"] == []


class Odd(MemoryStore):
    """A store that may have no room for notes, and that remembers behind which numbers it was asked for events."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False
        self.asked: list[int] = []
        self.was_asked = asyncio.Event()

    async def note(self, events: Sequence[NewEvent]) -> None:
        if self.is_full:
            raise Failed("the disk is full")
        await super().note(events)

    async def events(self, listing: EventListing) -> list[Event]:
        self.asked.append(listing.after)
        self.was_asked.set()
        return await super().events(listing)


async def test_what_cannot_be_written_keeps_nobody_from_reading_what_is_there() -> None:
    store = Odd()
    async with control_rig(store) as rig:
        made = await rig.create()
        listed = (await page(rig))["items"]
        store.is_full = True
        await rig.post(made, "exec", cmd="echo a")
        assert (await page(rig))["items"] == listed
        assert (await page(rig, cursor="latest"))["items"] == []
        store.is_full = False
        assert [item["type"] for item in (await page(rig))["items"]][-1] == "exec"


async def test_following_what_never_happens_looks_at_nothing_twice() -> None:
    store = Odd()
    async with control_rig(store) as rig:
        following = asyncio.create_task(
            anext(follow(rig.plane, EventListing(DEFAULT_WORKSPACE, types=frozenset({"none"}))))
        )
        for _ in range(3):
            await rig.create()
            newest = await store.last_event()
            store.was_asked.clear()
            rig.plane.bells.news.ring()
            await asyncio.wait_for(store.was_asked.wait(), PATIENCE_S)
            store.was_asked.clear()
            rig.plane.bells.news.ring()
            await asyncio.wait_for(store.was_asked.wait(), PATIENCE_S)
            assert store.asked[-1] == newest
        following.cancel()
        await asyncio.wait([following])


async def test_commands_are_left_out_of_events_where_that_is_wished_for() -> None:
    async with control_rig(tells_commands=False) as rig:
        made = await rig.create()
        await rig.post(made, "exec", cmd="login --password secret")
        begun = await rig.post(made, "processes", cmd="login --password secret")
        told = await rig.told(made, "exec", "process")
    assert [kind for kind, _ in told] == ["exec", "process"]
    assert told[0][1]["exit_code"] == 127
    assert told[1][1] == {"job": begun["id"]}
    assert "secret" not in str(told)
