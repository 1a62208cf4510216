"""The numbers of events: none is told twice, whatever the machine loses with its power."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import event

from store_records import HERE, NOON, made
from torpor.control.store.contract import EventListing, NewEvent
from torpor.control.store.sql import UNSURE_AT_MOST, open_store


def noted(count: int) -> list[NewEvent]:
    return [NewEvent(NOON, HERE, made(1).id, "exec")] * count


async def test_a_new_database_begins_with_the_first_number(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "torpor.db")
    await store.add(made(1))
    assert await store.last_event() == 1
    await store.aclose()


async def test_after_a_start_no_number_is_used_that_may_have_been_told_and_lost(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "torpor.db")
    await store.add(made(1))
    await store.aclose()
    store = await open_store(tmp_path / "torpor.db")
    assert await store.last_event() == 1
    await store.note(noted(2))
    (first, second) = await store.events(EventListing(HERE, after=1))
    assert first.number > 1 + UNSURE_AT_MOST
    assert second.number == first.number + 1
    await store.aclose()


async def test_of_so_many_notes_some_take_all_of_them_to_the_disk(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "torpor.db")
    await store.add(made(1))
    unsure, most = 0, 0

    def note(_connection: object) -> None:
        nonlocal unsure
        unsure = 0

    event.listen(store._writer.sync_engine, "commit", note)
    for count in [1, 500, 499, 1, *[300] * 20]:
        unsure += count
        await store.note(noted(count))
        most = max(most, unsure)
    assert 0 < most < UNSURE_AT_MOST
    assert len(await store.events(EventListing(HERE, limit=100_000))) == 7002
    await store.aclose()
