"""The auditor: in order, together, durably where it has to be, and never lost while it can be kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from torpor.control.service.auditor import Auditor
from torpor.control.store.access import KEEP_CHANGES, AuditBounds, AuditListing
from torpor.errors import Failed
from torpor.model.access import AuditKind, NewAuditEntry
from torpor.testing.clock import JumpClock
from torpor.testing.store import MemoryStore


class Watched(MemoryStore):
    """A store that tells how it was written to, can be held up, and can fail."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[int, bool]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.is_full = False
        self.trimmed: list[AuditBounds] = []

    async def write_audit(self, entries: Sequence[NewAuditEntry], *, durably: bool) -> None:
        await self.open.wait()
        if self.is_full:
            raise Failed("the disk is full")
        self.writes.append((len(entries), durably))
        await super().write_audit(entries, durably=durably)

    async def trim_audit(self, bounds: AuditBounds) -> int:
        self.trimmed.append(bounds)
        return await super().trim_audit(bounds)


@pytest.fixture
def clock() -> JumpClock:
    return JumpClock()


@pytest.fixture
def store() -> Watched:
    return Watched()


@pytest.fixture
def auditor(store: Watched, clock: JumpClock) -> Auditor:
    return Auditor(store, clock)


def entry(clock: JumpClock, name: str, kind: AuditKind = AuditKind.CHANGE) -> NewAuditEntry:
    return NewAuditEntry(clock.now(), kind, name, "POST /", "127.0.0.1", 200)


async def kept(store: Watched) -> list[str]:
    return [one.request_id for one in await store.audit(AuditListing(None, limit=10_000, oldest_first=True))]


async def test_a_change_is_written_durably_and_takes_along_what_was_noted_before(
    auditor: Auditor, store: Watched, clock: JumpClock
) -> None:
    auditor.note(entry(clock, "a"))
    auditor.note(entry(clock, "b"))
    await auditor.write_now(entry(clock, "c"))
    assert (await kept(store), store.writes) == (["a", "b", "c"], [(3, True)])


async def test_what_is_noted_alone_is_not_waited_for_by_the_disk(
    auditor: Auditor, store: Watched, clock: JumpClock
) -> None:
    auditor.note(entry(clock, "a"))
    await auditor.flush()
    await auditor.flush()
    assert store.writes == [(1, False)]


async def test_changes_at_the_same_time_share_a_write(auditor: Auditor, store: Watched, clock: JumpClock) -> None:
    store.open.clear()
    writing = [asyncio.create_task(auditor.write_now(entry(clock, str(number)))) for number in range(50)]
    await asyncio.sleep(0)
    store.open.set()
    await asyncio.gather(*writing)
    assert await kept(store) == [str(number) for number in range(50)]
    assert len(store.writes) <= 2
    assert all(durably for _, durably in store.writes)


async def test_a_change_that_comes_while_something_is_noted_is_durable_all_the_same(
    auditor: Auditor, store: Watched, clock: JumpClock
) -> None:
    store.open.clear()
    auditor.note(entry(clock, "a"))
    flushing = asyncio.create_task(auditor.flush())
    await asyncio.sleep(0)
    writing = asyncio.create_task(auditor.write_now(entry(clock, "b")))
    await asyncio.sleep(0)
    store.open.set()
    await asyncio.gather(flushing, writing)
    assert await kept(store) == ["a", "b"]
    assert store.writes[-1][1] is True


async def test_many_are_written_in_batches(auditor: Auditor, store: Watched, clock: JumpClock) -> None:
    for number in range(1201):
        auditor.note(entry(clock, str(number)))
    await auditor.flush()
    assert [size for size, _ in store.writes] == [500, 500, 201]
    assert await kept(store) == [str(number) for number in range(1201)]


async def test_what_cannot_be_written_is_kept_and_written_later(
    auditor: Auditor, store: Watched, clock: JumpClock
) -> None:
    store.is_full = True
    await auditor.write_now(entry(clock, "a"))  # it has happened: that is no reason not to answer
    with pytest.raises(Failed):
        await auditor.flush()
    writer = asyncio.create_task(auditor.write())
    await clock.wait_sleepers(1)
    store.is_full = False
    await clock.jump(1)
    await auditor.flush()
    writer.cancel()
    await asyncio.wait([writer])
    assert (await kept(store), store.writes) == (["a"], [(1, True)])


async def test_the_end_writes_what_is_left(auditor: Auditor, store: Watched, clock: JumpClock) -> None:
    auditor.note(entry(clock, "a"))
    await auditor.aclose()
    assert await kept(store) == ["a"]
    store.is_full = True
    auditor.note(entry(clock, "b"))
    await auditor.aclose()


async def test_what_is_too_much_to_keep_is_dropped_but_never_a_change(
    auditor: Auditor, store: Watched, clock: JumpClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torpor.control.service.auditor._MOST_WAITING", 2)
    for name in "abc":
        auditor.note(entry(clock, name, AuditKind.USE))
    await auditor.write_now(entry(clock, "d"))
    assert await kept(store) == ["a", "b", "d"]


async def test_the_log_is_trimmed_at_the_start_and_every_hour(
    auditor: Auditor, store: Watched, clock: JumpClock
) -> None:
    await auditor.write_now(entry(clock, "a"))
    trimming = asyncio.create_task(auditor.trim())
    await clock.wait_sleepers(1)
    await clock.jump(3600)
    await clock.wait_sleepers(1)
    assert len(store.trimmed) == 2
    assert store.trimmed[1].changes - store.trimmed[0].changes == timedelta(hours=1)
    await clock.jump(KEEP_CHANGES.total_seconds())
    await clock.wait_sleepers(1)
    trimming.cancel()
    await asyncio.wait([trimming])
    assert await kept(store) == []
