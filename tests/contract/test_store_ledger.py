"""The ledger and the events of every store: the SQL one and the one in memory."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store_records import HERE, NOON, made, opened, shot
from torpor.control.store.contract import (
    Account,
    AccountListing,
    Boundary,
    EventListing,
    Horizons,
    NewEvent,
    Store,
)
from torpor.control.store.sql import open_store
from torpor.model.ids import SandboxId, WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.snapshot import Cost
from torpor.model.usage import Interval, Reading
from torpor.testing.store import MemoryStore

BORN = made(1, state=State.CREATING, created_at=NOON)
ID = BORN.id


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@pytest.fixture(params=["sql", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(request.param, tmp_path) as store:
        await store.add(BORN)
        yield store


async def account(store: Store, sandbox_id: SandboxId = ID) -> Account:
    (found,) = await store.accounts(AccountListing(HERE, sandbox=sandbox_id))
    return found


async def intervals(store: Store) -> Sequence[Interval]:
    return (await account(store)).intervals


async def move(store: Store, to: State, second: float, boundary: Boundary | None = None) -> None:
    assert await store.move(ID, set(State), to, at(second), boundary=boundary) is not None


async def test_a_ledger_begins_with_its_sandbox(store: Store) -> None:
    assert await intervals(store) == [Interval(State.CREATING, NOON, NOON, is_open=True)]
    assert await account(store) == Account(BORN, None, [Interval(State.CREATING, NOON, NOON, is_open=True)])


async def test_a_change_of_state_closes_one_interval_and_opens_the_next_at_that_moment(store: Store) -> None:
    await move(store, State.RUNNING, 2, Boundary("create", Reading(cpu_seconds=1.5, disk_bytes=7)))
    assert await intervals(store) == [
        Interval(State.CREATING, NOON, at(2), cpu_seconds=1.5, disk_bytes=7),
        Interval(State.RUNNING, at(2), at(2), is_open=True, disk_bytes=7),
    ]


async def test_a_change_that_is_refused_leaves_the_ledger_alone(store: Store) -> None:
    assert await store.move(ID, {State.RUNNING}, State.PAUSED, at(2)) is None
    assert await intervals(store) == [Interval(State.CREATING, NOON, NOON, is_open=True)]
    assert await store.last_event() == 1


async def test_a_deletion_closes_the_ledger(store: Store) -> None:
    await move(store, State.RUNNING, 1)
    await move(store, State.DELETED, 5, Boundary("delete", Reading(cpu_seconds=2)))
    found = await account(store)
    assert found.deleted_at == at(5)
    assert found.intervals[-1] == Interval(State.RUNNING, at(1), at(5), cpu_seconds=2)
    await store.beat(at(9), {ID: Reading(cpu_seconds=4)})
    assert await account(store) == found


async def test_a_heartbeat_brings_what_is_open_up_to_now_with_what_was_used_since_the_last(store: Store) -> None:
    await move(store, State.RUNNING, 1)
    await store.beat(at(10), {ID: Reading(4, 100, resident_bytes=9, disk_bytes=50)})
    await store.beat(at(20), {ID: Reading(5, 300, resident_bytes=9, disk_bytes=40)})
    assert (await intervals(store))[-1] == Interval(State.RUNNING, at(1), at(20), True, 5, 300, 40)
    await move(store, State.PAUSED, 25)
    await store.beat(at(30), {ID: Reading(6, 400, disk_bytes=40)})
    assert (await intervals(store))[1:] == [
        Interval(State.RUNNING, at(1), at(25), False, 5, 300, 40),
        Interval(State.PAUSED, at(25), at(30), True, 1, 100, 40),
    ]


async def test_a_heartbeat_never_brings_back(store: Store) -> None:
    await store.beat(at(10), {ID: Reading()})
    await store.beat(at(5), {ID: Reading(1)})
    assert await intervals(store) == [Interval(State.CREATING, NOON, at(10), is_open=True)]


async def test_who_is_not_heard_of_in_a_heartbeat_stays_where_it_was(store: Store) -> None:
    await store.add(made(2, created_at=NOON))
    await store.beat(at(10), {made(2).id: Reading()})
    assert (await intervals(store))[-1].ended_at == NOON
    assert (await account(store, made(2).id)).intervals[-1].ended_at == at(10)


async def test_a_counter_that_began_anew_is_counted_from_zero(store: Store) -> None:
    await store.beat(at(10), {ID: Reading(cpu_seconds=100, resident_byte_seconds=1000)})
    await store.beat(at(20), {ID: Reading(cpu_seconds=3, resident_byte_seconds=30)})
    await store.beat(at(30), {ID: Reading(cpu_seconds=5, resident_byte_seconds=50)})
    (found,) = await intervals(store)
    assert (found.cpu_seconds, found.resident_byte_seconds) == (105, 1050)


async def test_a_reading_that_is_a_little_old_counts_nothing_twice(store: Store) -> None:
    for second, cpu in ((10, 100), (20, 97), (30, 99), (40, 104)):
        await store.beat(at(second), {ID: Reading(cpu_seconds=cpu)})
    (found,) = await intervals(store)
    assert found.cpu_seconds == 104


@pytest.mark.parametrize(("since", "ended"), [(0, 10), (13, 13), (99, 20), (None, 20)])
async def test_what_is_noticed_late_is_told_when_it_was_but_not_before_the_last_heartbeat(
    store: Store, since: float | None, ended: float
) -> None:
    await move(store, State.RUNNING, 1)
    await store.beat(at(10), {ID: Reading(cpu_seconds=4)})
    await move(store, State.FAILED, 20, Boundary("recover", since=None if since is None else at(since)))
    assert (await intervals(store))[1:] == [
        Interval(State.RUNNING, at(1), at(ended), cpu_seconds=4),
        Interval(State.FAILED, at(ended), at(ended), is_open=True),
    ]


async def test_a_clock_that_is_set_back_makes_no_gap_and_no_overlap(store: Store) -> None:
    await move(store, State.RUNNING, 100)
    await move(store, State.PAUSED, 40)
    await move(store, State.RUNNING, 110)
    assert [(one.began_at, one.ended_at) for one in await intervals(store)] == [
        (NOON, at(100)),
        (at(100), at(100)),
        (at(100), at(110)),
        (at(110), at(110)),
    ]


async def test_accounts_are_found_by_metadata_also_of_the_deleted_newest_first(store: Store) -> None:
    await store.add(made(2, metadata={"run": "7", "who": "a"}))
    await store.add(made(3, metadata={"run": "7"}))
    await store.add(made(4, metadata={"run": "8"}))
    await store.add(made(5, metadata={"run": "7"}, workspace=WorkspaceId("other")))
    await store.move(made(2).id, {State.CREATING}, State.DELETED, at(50))

    async def ids(**metadata: str) -> list[str]:
        return [one.sandbox.id for one in await store.accounts(AccountListing(HERE, metadata=metadata))]

    assert await ids(run="7") == [made(3).id, made(2).id]
    assert await ids(run="7", who="a") == [made(2).id]
    assert await ids(run="9") == []
    assert await ids() == [made(number).id for number in (4, 3, 2)] + [ID]
    assert await store.accounts(AccountListing(WorkspaceId("other"), sandbox=ID)) == []


async def test_accounts_of_a_time_have_who_was_there_and_what_lies_in_it(store: Store) -> None:
    await move(store, State.RUNNING, 10)
    await move(store, State.PAUSED, 20)
    await move(store, State.DELETED, 30)
    await store.add(made(2, created_at=at(40)))

    async def states(since: float | None, until: float | None) -> list[tuple[str, list[State]]]:
        start, end = (None if bound is None else at(bound) for bound in (since, until))
        found = await store.accounts(AccountListing(HERE, since=start, until=end))
        return [(one.sandbox.id, [each.state for each in one.intervals]) for one in found]

    assert await states(12, 18) == [(ID, [State.RUNNING])]
    assert await states(10, 20) == [(ID, [State.RUNNING])]
    assert await states(5, 25) == [(ID, [State.CREATING, State.RUNNING, State.PAUSED])]
    assert await states(30, 40) == []
    assert await states(35, None) == [(made(2).id, [State.CREATING])]
    assert await states(1000, 2000) == [(made(2).id, [State.CREATING])]


async def events(store: Store, **listing: object) -> list[tuple[str, dict[str, object]]]:
    found = await store.events(EventListing(HERE, **listing))  # type: ignore[arg-type]  # the tests name fields
    return [(event.type, dict(event.data)) for event in found]


async def test_every_change_of_state_writes_an_event(store: Store) -> None:
    await move(store, State.RUNNING, 1, Boundary("create"))
    await store.move(ID, {State.RUNNING}, State.FAILED, at(2), {"reason": "it died"}, Boundary("recover"))
    assert await events(store) == [
        ("state", {"from": None, "to": "creating", "verb": "create"}),
        ("state", {"from": "creating", "to": "running", "verb": "create"}),
        ("state", {"from": "running", "to": "failed", "verb": "recover", "reason": "it died"}),
        ("failed", {"reason": "it died", "last_snapshot": None}),
    ]
    found = await store.events(EventListing(HERE))
    assert [event.at for event in found] == [NOON, at(1), at(2), at(2)]
    assert {(event.workspace, event.sandbox) for event in found} == {(HERE, ID)}


async def test_a_snapshot_writes_an_event_once(store: Store) -> None:
    taken = shot(3, sandbox=1, name="first", size_bytes=8, cost=Cost(1.5, 2.5, 4096, 512))
    for _ in range(2):
        await store.add_snapshot(taken)
    assert await events(store, types=frozenset({"checkpoint"})) == [
        (
            "checkpoint",
            {
                "snapshot_id": taken.id,
                "kind": "checkpoint",
                "name": "first",
                "size_bytes": 8,
                "pause_ms": 1.5,
                "took_ms": 2.5,
                "dirty_bytes": 4096,
            },
        )
    ]


async def test_events_are_read_in_pages_from_a_number_on(store: Store) -> None:
    other = NewEvent(at(0), WorkspaceId("other"), ID, "exec")
    await store.note(
        [NewEvent(at(number), HERE, made(number % 2).id, f"type{number}") for number in range(5)] + [other]
    )
    seen: list[str] = []
    after = 0
    while page := await store.events(EventListing(HERE, after=after, limit=2)):
        seen += [event.type for event in page]
        after = page[-1].number
    assert seen == ["state", "type0", "type1", "type2", "type3", "type4"]
    assert [name for name, _ in await events(store, sandbox=made(0).id)] == ["type0", "type2", "type4"]
    assert [name for name, _ in await events(store, types=frozenset({"type1", "type4"}))] == ["type1", "type4"]
    assert await store.last_event() > after
    assert await events(store, after=await store.last_event()) == []


async def test_what_is_noted_is_read_back_whole(store: Store) -> None:
    said = NewEvent(at(1), HERE, ID, "exec", {"command": "a'b\"ключ\n", "exit_code": 0, "signal": None, "list": [1.5]})
    await store.note([said])
    await store.note([])
    (found,) = await store.events(EventListing(HERE, types=frozenset({"exec"})))
    assert (found.at, found.workspace, found.sandbox, found.type, found.data) == (at(1), HERE, ID, "exec", said.data)


async def test_events_outlive_their_sandbox_until_they_are_old_and_no_number_is_used_twice(store: Store) -> None:
    await store.note([NewEvent(at(5), HERE, ID, "exec")])
    await move(store, State.DELETED, 10)
    assert await store.forget(Horizons(claims=at(11), sandboxes=at(11), events=at(5))) == 1
    assert await store.accounts(AccountListing(HERE)) == []
    assert [name for name, _ in await events(store, sandbox=ID)] == ["exec", "state"]
    last = await store.last_event()
    await store.forget(Horizons(claims=at(11), sandboxes=at(11), events=at(11)))
    assert await events(store) == []
    await store.note([NewEvent(at(12), HERE, ID, "exec")])
    assert await store.last_event() > last


async def test_a_living_sandboxs_ledger_is_never_forgotten(store: Store) -> None:
    await move(store, State.RUNNING, 1)
    await store.forget(Horizons(claims=at(99), sandboxes=at(99), events=at(99)))
    assert [one.state for one in await intervals(store)] == [State.CREATING, State.RUNNING]


@dataclass(frozen=True)
class Step:
    """Something that happens `after` seconds: `what` is beat, kill, anew (the host's counters), or a state moved to."""

    what: str
    after: float
    used: float
    since: float | None
    is_read: bool


STATES = [state.value for state in State if state is not State.DELETED]
STEPS = st.builds(
    Step,
    what=st.sampled_from(["beat", "beat", "beat", "kill", "anew", "stale", *STATES]),
    after=st.floats(0, 100) | st.just(0.0),
    used=st.integers(0, 50).map(float),
    since=st.none() | st.floats(0, 200),
    is_read=st.booleans(),
)


class Played:
    """A store to which steps happen, and what it has to say in the end."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now = NOON
        self.counter = 0.0
        self.counted = 0.0
        self._unread = 0.0

    async def play(self, step: Step) -> None:
        self.now += timedelta(seconds=step.after)
        self.counter += step.used
        self._unread += step.used
        if step.what == "beat":
            await self.store.beat(self.now, {ID: self._read()})
        elif step.what == "stale":
            old = (self.counter - self._unread) * 0.9
            await self.store.beat(self.now, {ID: Reading(old, old * 1000)})
        elif step.what == "anew":
            await self.store.beat(self.now, {ID: self._read()})
            self.counter = 0.0
            await self.store.beat(self.now, {ID: self._read()})
        elif step.what != "kill":
            since = None if step.since is None else self.now - timedelta(seconds=step.since)
            boundary = Boundary("test", self._read() if step.is_read else None, since)
            assert await self.store.move(ID, set(State), State(step.what), self.now, boundary=boundary) is not None

    def _read(self) -> Reading:
        self.counted += self._unread
        self._unread = 0.0
        return Reading(self.counter, self.counter * 1000)

    async def check(self) -> None:
        found = await intervals(self.store)
        assert found[0].began_at == NOON
        for before, after in itertools.pairwise(found):
            assert before.ended_at == after.began_at
            assert not before.is_open
        assert all(one.began_at <= one.ended_at <= self.now for one in found)
        assert found[-1].is_open
        assert all(one.cpu_seconds >= 0 for one in found)
        assert sum(one.cpu_seconds for one in found) == pytest.approx(self.counted)
        assert sum(one.resident_byte_seconds for one in found) == pytest.approx(self.counted * 1000)


def killed(folder: Path, times: int) -> Path:
    """Return a folder with the database as it would be found if the program were killed at this moment."""
    found = folder.with_name(f"{folder.name}-{times}")
    shutil.copytree(folder, found, ignore=shutil.ignore_patterns("*-shm"))
    return found


@given(steps=st.lists(STEPS, max_size=30))
@settings(max_examples=150, deadline=None)
def test_in_memory_intervals_neither_overlap_nor_leave_a_gap_and_sum_up(steps: list[Step]) -> None:
    async def run() -> None:
        played = Played(MemoryStore())
        await played.store.add(BORN)
        for step in steps:
            await played.play(step)
        await played.check()

    asyncio.run(run())


@given(steps=st.lists(STEPS, max_size=30))
@settings(max_examples=25, deadline=None)
def test_in_the_database_they_do_neither_and_sum_up_also_over_kills(
    steps: list[Step],
) -> None:
    async def run(folder: Path) -> None:
        folder.mkdir()
        played = Played(await open_store(folder / "torpor.db"))
        await played.store.add(BORN)
        for times, step in enumerate(steps):
            await played.play(step)
            if step.what == "kill":
                folder, former = killed(folder, times), played.store
                played.store = await open_store(folder / "torpor.db")
                await former.aclose()
        await played.check()
        await played.store.aclose()

    with TemporaryDirectory() as made_here:
        asyncio.run(run(Path(made_here) / "home"))


def test_a_step_that_is_lost_would_be_noticed() -> None:
    async def run() -> None:
        played = Played(MemoryStore())
        await played.store.add(BORN)
        await played.play(Step("beat", 5, 3, None, True))
        played.counted += 1
        with pytest.raises(AssertionError):
            await played.check()

    asyncio.run(run())
