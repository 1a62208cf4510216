"""The noter: nothing that was noted is lost, told twice, or waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from store_records import HERE, made
from torpor.control.service.noter import Noter
from torpor.control.store.contract import EventListing, NewEvent
from torpor.errors import Failed
from torpor.kit.news import News
from torpor.testing.clock import JumpClock
from torpor.testing.store import MemoryStore


class Slow(MemoryStore):
    """A store whose notes can be made to fail, or to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self.go.set()

    async def note(self, events: Sequence[NewEvent]) -> None:
        self.reached.set()
        await self.go.wait()
        if self.failures:
            self.failures -= 1
            raise Failed("the disk is full")
        await super().note(events)


class Bench:
    def __init__(self) -> None:
        self.store, self.clock, self.news = Slow(), JumpClock(), News()
        self.noter = Noter(self.store, self.clock, self.news)

    async def written(self) -> list[str]:
        return [event.type for event in await self.store.events(EventListing(HERE, limit=100_000))]


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_what_is_noted_is_written_in_its_order_and_rings(bench: Bench) -> None:
    coming = bench.news.coming
    writing = asyncio.create_task(bench.noter.write())
    for number in range(1200):
        bench.noter.note(f"t{number}", made(1))
    await asyncio.wait_for(coming.wait(), 5)
    await bench.noter.flush()
    assert await bench.written() == [f"t{number}" for number in range(1200)]
    writing.cancel()
    await asyncio.wait([writing])


async def test_what_cannot_be_written_is_kept_and_written_later(bench: Bench) -> None:
    bench.store.failures = 2
    writing = asyncio.create_task(bench.noter.write())
    bench.noter.note("exec", made(1))
    await bench.clock.wait_sleepers()
    bench.noter.note("idle", made(1))
    assert await bench.written() == []
    await bench.clock.jump(10)
    assert await bench.written() == ["exec", "idle"]
    writing.cancel()
    await asyncio.wait([writing])


async def test_a_cancellation_while_it_is_written_neither_loses_nor_doubles(bench: Bench) -> None:
    bench.store.go.clear()
    bench.noter.note("exec", made(1))
    writing = asyncio.create_task(bench.noter.write())
    await bench.store.reached.wait()
    writing.cancel()
    bench.store.go.set()
    await asyncio.wait([writing])
    await bench.noter.flush()
    assert await bench.written() == ["exec"]


async def test_closing_writes_what_is_left(bench: Bench) -> None:
    bench.noter.note("exec", made(1), exit_code=3)
    await bench.noter.aclose()
    (event,) = await bench.store.events(EventListing(HERE))
    assert (event.sandbox, event.at, event.data) == (made(1).id, bench.clock.now(), {"exit_code": 3})


async def test_closing_where_nothing_can_be_written_is_no_error(bench: Bench) -> None:
    bench.store.failures = 1
    bench.noter.note("exec", made(1))
    await bench.noter.aclose()
    assert await bench.written() == []


async def test_more_than_can_wait_is_dropped_and_the_rest_is_written(bench: Bench) -> None:
    for _ in range(10_005):
        bench.noter.note("exec", made(1))
    await bench.noter.flush()
    assert len(await bench.written()) == 10_000
    bench.noter.note("exec", made(1))
    await bench.noter.flush()
    assert len(await bench.written()) == 10_001


async def test_what_is_no_json_value_is_told_as_text(bench: Bench) -> None:
    bench.noter.note("exec", made(1), error=ValueError("odd"), data={"a": {1}})
    await bench.noter.flush()
    (event,) = await bench.store.events(EventListing(HERE))
    assert event.data == {"error": "odd", "data": {"a": "{1}"}}


async def test_a_listener_that_took_what_is_coming_misses_no_ring(bench: Bench) -> None:
    coming = bench.news.coming
    bench.news.ring()
    bench.news.ring()
    await asyncio.wait_for(coming.wait(), 1)
    assert not bench.news.coming.is_set()
