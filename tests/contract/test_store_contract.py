"""One suite that every store passes: the SQL one and the one in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from store_records import HERE, NOON, made, opened, shot
from torpor.control.store.contract import Claim, Horizons, Listing, Position, SnapshotListing, Store
from torpor.errors import Conflict
from torpor.model.ids import SandboxId, SnapshotId, WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.sandbox import Care, OnCrash, OnIdle
from torpor.model.snapshot import Cost, Kind


@pytest.fixture(params=["sql", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(request.param, tmp_path) as store:
        yield store


async def test_what_was_added_is_read_back_whole(store: Store) -> None:
    sandbox = made(
        1,
        expires_at=NOON + timedelta(hours=1),
        ttl_seconds=3600,
        name="web",
        metadata={"run": "a'b\"c\nd", "ключ": "wert"},
    )
    assert await store.add(sandbox) == sandbox
    assert await store.get(sandbox.id) == sandbox


async def test_a_sandbox_nobody_added_is_none(store: Store) -> None:
    assert await store.get(SandboxId("sbx-none")) is None


async def test_a_move_from_a_state_it_saw_changes_state_and_facts(store: Store) -> None:
    await store.add(made(1))
    moved = await store.move(made(1).id, {State.CREATING}, State.RUNNING, NOON, {"boot_ms": 88, "memory_mb": 256})
    assert moved == made(1, state=State.RUNNING, boot_ms=88, memory_mb=256)
    assert await store.get(made(1).id) == moved


async def test_a_move_from_another_state_changes_nothing(store: Store) -> None:
    await store.add(made(1))
    assert await store.move(made(1).id, {State.RUNNING}, State.FAILED, NOON, {"reason": "no"}) is None
    assert await store.get(made(1).id) == made(1)


async def test_a_move_of_nobody_is_none(store: Store) -> None:
    assert await store.move(SandboxId("sbx-none"), {State.RUNNING}, State.FAILED, NOON) is None


async def test_of_many_moves_from_one_state_one_succeeds(store: Store) -> None:
    await store.add(made(1, state=State.RUNNING))
    moves = [store.move(made(1).id, {State.RUNNING}, State.DELETING, NOON) for _ in range(8)]
    assert sum(moved is not None for moved in await asyncio.gather(*moves)) == 1


async def test_a_name_is_taken_while_its_sandbox_lives(store: Store) -> None:
    await store.add(made(1, name="web"))
    with pytest.raises(Conflict, match="web"):
        await store.add(made(2, name="web"))
    assert await store.get(made(2).id) is None
    await store.add(made(3, name="web", workspace=WorkspaceId("other")))
    await store.move(made(1).id, {State.CREATING}, State.DELETED, NOON)
    await store.add(made(4, name="web"))


async def test_a_refused_name_leaves_its_claim_free(store: Store) -> None:
    await store.add(made(1, name="web"))
    with pytest.raises(Conflict):
        await store.add(made(2, name="web"), Claim("k", "d"))
    assert await store.claimed(HERE, Claim("k", "d")) is None


async def test_the_same_claim_gives_the_earlier_sandbox(store: Store) -> None:
    first = await store.add(made(1), Claim("k", "d"))
    assert await store.add(made(2), Claim("k", "d")) == first
    assert await store.get(made(2).id) is None
    assert await store.claimed(HERE, Claim("k", "d")) == first


async def test_of_many_adds_with_one_claim_one_is_recorded(store: Store) -> None:
    adds = [store.add(made(number), Claim("k", "d")) for number in range(8)]
    assert len({sandbox.id for sandbox in await asyncio.gather(*adds)}) == 1
    assert len(await store.living()) == 1


async def test_a_key_with_another_digest_is_a_conflict(store: Store) -> None:
    await store.add(made(1), Claim("k", "d"))
    with pytest.raises(Conflict, match=made(1).id):
        await store.add(made(2), Claim("k", "other"))
    with pytest.raises(Conflict, match="'k'"):
        await store.claimed(HERE, Claim("k", "other"))


async def test_a_key_means_nothing_in_another_workspace(store: Store) -> None:
    await store.add(made(1), Claim("k", "d"))
    other = made(2, workspace=WorkspaceId("other"))
    assert await store.claimed(other.workspace, Claim("k", "x")) is None
    assert await store.add(other, Claim("k", "x")) == other


async def test_a_claim_is_free_again_once_its_sandbox_never_came_to_be(store: Store) -> None:
    await store.add(made(1), Claim("k", "d"))
    await store.move(made(1).id, {State.CREATING}, State.DELETED, NOON)
    assert await store.claimed(HERE, Claim("k", "d")) is None
    assert await store.add(made(2), Claim("k", "d2")) == made(2)


async def test_a_claim_stays_held_after_its_sandbox_ran_and_was_deleted(store: Store) -> None:
    await store.add(made(1), Claim("k", "d"))
    await store.move(made(1).id, {State.CREATING}, State.RUNNING, NOON, {"boot_ms": 1})
    await store.move(made(1).id, {State.RUNNING}, State.DELETED, NOON)
    held = await store.claimed(HERE, Claim("k", "d"))
    assert held is not None
    assert held.state is State.DELETED


async def test_a_page_lists_the_living_newest_first(store: Store) -> None:
    for number in range(5):
        await store.add(made(number))
    await store.add(made(9, workspace=WorkspaceId("other")))
    await store.move(made(2).id, {State.CREATING}, State.DELETED, NOON)
    assert [one.id for one in await store.page(Listing(HERE))] == [made(n).id for n in (4, 3, 1, 0)]


async def test_pages_join_into_the_whole_list_even_where_times_are_equal(store: Store) -> None:
    for number in range(7):
        await store.add(made(number, created_at=NOON + timedelta(seconds=number // 3)))
    seen: list[SandboxId] = []
    after: Position | None = None
    while page := await store.page(Listing(HERE, limit=2, after=after)):
        seen += [one.id for one in page]
        after = Position(page[-1].created_at, page[-1].id)
    assert seen == [made(n).id for n in (6, 5, 4, 3, 2, 1, 0)]


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        (Listing(HERE, metadata={"run": "1"}), [1, 0]),
        (Listing(HERE, metadata={"run": "1", 'odd."key': "%_'"}), [1]),
        (Listing(HERE, metadata={"run": "nothing"}), []),
        (Listing(HERE, state=State.RUNNING), [2]),
        (Listing(HERE, state=State.DELETED), []),
    ],
)
async def test_a_listing_filters_by_state_and_metadata(store: Store, listing: Listing, expected: list[int]) -> None:
    await store.add(made(0, metadata={"run": "1"}))
    await store.add(made(1, metadata={"run": "1", 'odd."key': "%_'"}))
    await store.add(made(2, state=State.RUNNING))
    assert [one.id for one in await store.page(listing)] == [made(n).id for n in expected]


async def test_living_leaves_out_only_the_deleted(store: Store) -> None:
    for number, state in enumerate(State):
        await store.add(made(number, state=state, workspace=WorkspaceId(f"w{number}")))
    assert {one.state for one in await store.living()} == set(State) - {State.DELETED}


async def test_an_expiry_can_be_set_and_taken_away(store: Store) -> None:
    await store.add(made(1))
    end = NOON + timedelta(seconds=5)
    assert await store.set_expiry(made(1).id, end, 5) == made(1, expires_at=end, ttl_seconds=5)
    assert await store.set_expiry(made(1).id, None, None) == made(1)


async def test_the_care_for_a_sandbox_is_read_back_and_its_idle_time_can_be_set(
    store: Store,
) -> None:
    care = Care(
        idle_timeout_seconds=60,
        on_idle=OnIdle.DELETE,
        on_crash=OnCrash.RESTORE,
        checkpoint_every_seconds=300,
        checkpoint_every_execs=5,
        checkpoint_keep=7,
    )
    await store.add(made(1, care=care))
    assert await store.get(made(1).id) == made(1, care=care)
    for idle in (None, 90):
        expected = made(1, care=replace(care, idle_timeout_seconds=idle))
        assert await store.set_idle(made(1).id, idle) == expected
        assert await store.page(Listing(HERE)) == [expected]
    assert await store.set_idle(SandboxId("sbx-none"), 5) is None


@pytest.mark.parametrize("state", [State.DELETING, State.DELETED])
async def test_an_idle_time_is_not_set_on_what_is_going(store: Store, state: State) -> None:
    await store.add(made(1, state=state))
    assert await store.set_idle(made(1).id, 5) is None
    assert await store.get(made(1).id) == made(1, state=state)


@pytest.mark.parametrize("state", [State.DELETING, State.DELETED])
async def test_an_expiry_is_not_set_on_what_is_going(store: Store, state: State) -> None:
    await store.add(made(1, state=state))
    assert await store.set_expiry(made(1).id, NOON, 5) is None
    assert await store.get(made(1).id) == made(1, state=state)


async def test_due_are_settled_sandboxes_past_their_end_earliest_first(store: Store) -> None:
    mortal = [State.RUNNING, State.PAUSED, State.HIBERNATED, State.FAILED]
    for number, state in enumerate([*mortal, *sorted(set(State) - set(mortal))]):
        await store.add(made(number, state=state, expires_at=NOON - timedelta(seconds=number)))
    await store.add(made(20, state=State.RUNNING, expires_at=NOON + timedelta(microseconds=1)))
    await store.add(made(21, state=State.RUNNING))
    assert [one.id for one in await store.due(NOON, 10)] == [made(number).id for number in (3, 2, 1, 0)]
    assert [one.id for one in await store.due(NOON, 1)] == [made(3).id]


async def test_the_next_expiry_is_the_earliest_of_the_settled(store: Store) -> None:
    assert await store.next_expiry(NOON) is None
    await store.add(made(1, state=State.CREATING, expires_at=NOON))
    assert await store.next_expiry(NOON) is None
    for number in (5, 3, 4):
        await store.add(made(number, state=State.RUNNING, expires_at=NOON + timedelta(seconds=number)))
    assert await store.next_expiry(NOON) == NOON + timedelta(seconds=3)


def until(moment: datetime) -> Horizons:
    return Horizons(claims=moment, sandboxes=moment, events=moment)


async def test_forgetting_drops_old_deleted_sandboxes_with_their_claims_and_nothing_else(store: Store) -> None:
    for number in range(3):
        claim = Claim(f"k{number}", "d")
        await store.add(made(number, state=State.RUNNING, boot_ms=1, metadata={"run": "1"}), claim)
    await store.move(made(0).id, {State.RUNNING}, State.DELETED, NOON)
    await store.move(made(1).id, {State.RUNNING}, State.DELETED, NOON + timedelta(seconds=1))
    assert await store.forget(until(NOON + timedelta(seconds=1))) == 1
    assert await store.get(made(0).id) is None
    assert await store.claimed(HERE, Claim("k0", "other")) is None
    for number in (1, 2):
        assert await store.get(made(number).id) is not None
        assert await store.claimed(HERE, Claim(f"k{number}", "d")) is not None


async def test_a_claim_is_dropped_before_its_deleted_sandbox_is(store: Store) -> None:
    await store.add(made(1, state=State.RUNNING, boot_ms=1), Claim("k", "d"))
    await store.add(made(2, state=State.RUNNING, boot_ms=1), Claim("k2", "d"))
    await store.move(made(1).id, {State.RUNNING}, State.DELETED, NOON)
    later = NOON + timedelta(days=1)
    assert await store.forget(Horizons(claims=later, sandboxes=NOON, events=NOON)) == 0
    assert await store.claimed(HERE, Claim("k", "other")) is None
    assert await store.claimed(HERE, Claim("k2", "d")) is not None
    found = await store.get(made(1).id)
    assert found is not None
    assert found.state is State.DELETED
    assert await store.add(made(3), Claim("k", "other")) == made(3)


async def test_a_cancelled_write_is_whole_or_nothing_and_hinders_nobody(store: Store) -> None:
    await store.add(made(0, state=State.RUNNING))
    for turns in range(60):
        sandbox = made(turns + 1, metadata={"run": "1"})
        writing = asyncio.create_task(store.add(sandbox, Claim(f"k{turns}", "d")))
        reading = asyncio.create_task(store.get(made(0).id))
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in (writing, reading):
            task.cancel()
        await asyncio.wait([writing, reading])
        held = await store.claimed(HERE, Claim(f"k{turns}", "d"))
        assert held == await store.get(sandbox.id)
        assert await store.move(made(0).id, {State.RUNNING}, State.RUNNING, NOON) is not None


async def last_snapshot(store: Store, number: int) -> str | None:
    sandbox = await store.get(made(number).id)
    assert sandbox is not None
    return sandbox.last_snapshot


async def test_a_snapshot_is_read_back_whole(store: Store) -> None:
    whole = shot(
        1,
        kind=Kind.HIBERNATION,
        name="a'b\"c ключ",
        parent=SnapshotId("snp-parent"),
        size_bytes=2**40,
        cost=Cost(pause_ms=1.5, took_ms=2.25, dirty_bytes=2**33, written_bytes=7),
    )
    await store.add_snapshot(whole)
    await store.add_snapshot(shot(2))
    assert await store.snapshot(whole.id) == whole
    assert await store.snapshot(shot(2).id) == shot(2)
    assert await store.snapshot(SnapshotId("snp-none")) is None


async def test_a_snapshot_that_is_recorded_stays_as_it_is(store: Store) -> None:
    await store.add_snapshot(shot(1, name="first"))
    await store.add_snapshot(shot(1, name="second"))
    assert await store.every_snapshot() == [shot(1, name="first")]


async def test_a_snapshot_can_be_removed_and_again(store: Store) -> None:
    await store.add_snapshot(shot(1))
    for _ in range(2):
        await store.remove_snapshot(shot(1).id)
    assert await store.every_snapshot() == []


async def test_snapshots_are_listed_newest_first_in_pages(store: Store) -> None:
    for number in range(5):
        await store.add_snapshot(shot(number, sandbox=number % 2, created_at=NOON + timedelta(seconds=number // 2)))
    await store.add_snapshot(shot(9, workspace=WorkspaceId("other")))
    seen: list[str] = []
    after: Position | None = None
    while page := await store.snapshots(SnapshotListing(HERE, limit=2, after=after)):
        seen += [one.id for one in page]
        after = Position(page[-1].created_at, page[-1].id)
    assert seen == [shot(number).id for number in (4, 3, 2, 1, 0)]
    of_one = await store.snapshots(SnapshotListing(HERE, sandbox=made(1).id))
    assert [one.id for one in of_one] == [shot(3).id, shot(1).id]
    assert [one.id for one in await store.snapshots_of(made(1).id)] == [shot(number).id for number in (9, 3, 1)]
    assert len(await store.every_snapshot()) == 6


async def test_the_last_snapshot_of_a_sandbox_is_its_newest(store: Store) -> None:
    await store.add(made(1, state=State.RUNNING))
    for number in (2, 1, 3):
        await store.add_snapshot(shot(number))
    assert await last_snapshot(store, 1) == shot(3).id
    for removed, left in ((2, 3), (3, 1), (1, None)):
        await store.remove_snapshot(shot(removed).id)
        assert await last_snapshot(store, 1) == (None if left is None else shot(left).id)


async def test_without_one_of_its_own_the_last_snapshot_is_where_a_sandbox_came_from(store: Store) -> None:
    await store.add_snapshot(shot(1, sandbox=1))
    came = await store.add(made(2, from_snapshot=shot(1).id))
    assert came.last_snapshot == shot(1).id
    await store.add_snapshot(shot(2, sandbox=2))
    assert await last_snapshot(store, 2) == shot(2).id
    await store.remove_snapshot(shot(2).id)
    assert await last_snapshot(store, 2) == shot(1).id
    await store.remove_snapshot(shot(1).id)
    assert await last_snapshot(store, 2) is None
    found = await store.get(made(2).id)
    assert found is not None
    assert found.from_snapshot == shot(1).id


async def test_a_sandbox_may_learn_late_where_it_came_from(store: Store) -> None:
    await store.add_snapshot(shot(1, sandbox=1))
    await store.add(made(2))
    moved = await store.move(made(2).id, {State.CREATING}, State.RUNNING, NOON, {"from_snapshot": shot(1).id})
    assert moved == made(2, state=State.RUNNING, from_snapshot=shot(1).id, last_snapshot=shot(1).id)
    assert await store.get(made(2).id) == moved


async def test_a_snapshot_that_is_not_there_any_more_is_nobodys_last(store: Store) -> None:
    assert (await store.add(made(2, from_snapshot=shot(1).id))).last_snapshot is None


async def test_a_snapshot_outlives_its_sandbox(store: Store) -> None:
    await store.add(made(1, state=State.RUNNING))
    await store.add_snapshot(shot(1))
    await store.move(made(1).id, {State.RUNNING}, State.DELETED, NOON)
    assert await store.forget(until(NOON + timedelta(seconds=1))) == 1
    assert await store.snapshot(shot(1).id) == shot(1)
    await store.remove_snapshot(shot(1).id)
    assert await store.snapshot(shot(1).id) is None


async def test_closing_twice_is_fine(store: Store) -> None:
    await store.aclose()
