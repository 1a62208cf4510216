"""The gate: every way through the table of passages, and every way a passage can end."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest

from gate_bench import ID, Bench, sandbox
from torpor.control.store.contract import Claim
from torpor.errors import (
    BootFailed,
    Busy,
    Conflict,
    Failed,
    HostUnreachable,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    SandboxLost,
    TorporError,
)
from torpor.model.ids import SandboxId
from torpor.model.lifecycle import CREATE, DELETE, PASSAGES, ROLLBACK, Passage, State
from torpor.model.sandbox import Sandbox
from torpor.testing.store import MemoryStore

DEFINITE = [InvalidRequest("no"), Busy("later"), HostUnreachable("nobody there"), BootFailed("it did not boot")]


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_creation_shows_creating_and_ends_running_with_what_was_learned(bench: Bench) -> None:
    async with bench.gate.creation(sandbox(), None) as crossing:
        assert await bench.state() is State.CREATING
        crossing.learn(boot_ms=77, memory_mb=256)
    assert crossing.sandbox == replace(sandbox(State.RUNNING), boot_ms=77, memory_mb=256)
    assert await bench.store.get(ID) == crossing.sandbox
    assert bench.bells.expiry.is_set()
    assert not bench.bells.truth.is_set()


@pytest.mark.parametrize("start", sorted(DELETE.starts))
async def test_deletion_starts_in_each_of_its_states(bench: Bench, start: State) -> None:
    await bench.store.add(sandbox(start))
    async with bench.gate.passage(ID, DELETE) as crossing:
        assert not crossing.holds
        assert await bench.state() is DELETE.during
    assert await bench.state() is DELETE.done


async def test_deletion_holds_where_it_is_done_already(bench: Bench) -> None:
    await bench.store.add(sandbox(State.DELETED))
    async with bench.gate.passage(ID, DELETE) as crossing:
        assert crossing.holds
    assert await bench.state() is State.DELETED


@pytest.mark.parametrize("state", sorted(set(State) - DELETE.starts - DELETE.holds))
async def test_a_refusal_names_the_state_seen_and_those_needed(bench: Bench, state: State) -> None:
    await bench.store.add(sandbox(state))
    with pytest.raises(Conflict) as refused:
        async with bench.gate.passage(ID, DELETE):
            pytest.fail("a refused passage must not be entered")
    assert refused.value.seen == state
    assert refused.value.needed == ("failed", "hibernated", "paused", "running")
    assert state in refused.value.message
    assert await bench.state() is state


VERBS = [row for row in PASSAGES if row is not CREATE]
FROM = [(row, start) for row in VERBS for start in sorted(row.starts)]


@pytest.mark.parametrize(("row", "start"), FROM, ids=lambda value: getattr(value, "verb", value))
async def test_each_verb_shows_its_passage_and_settles_where_its_row_says(
    bench: Bench, row: Passage, start: State
) -> None:
    await bench.store.add(sandbox(start))
    async with bench.gate.passage(ID, row) as crossing:
        assert (crossing.began, crossing.holds) == (start, False)
        assert await bench.state() is (row.during or start)
    assert await bench.state() is (row.done or start)
    assert crossing.sandbox == await bench.store.get(ID)


@pytest.mark.parametrize(("row", "start"), FROM, ids=lambda value: getattr(value, "verb", value))
async def test_each_verb_that_definitely_failed_is_undone_as_its_row_says(
    bench: Bench, row: Passage, start: State
) -> None:
    before = replace(sandbox(start), reason="what was said before")
    await bench.store.add(before)
    with pytest.raises(Busy):
        async with bench.gate.passage(ID, row):
            raise Busy("not now")
    after = await bench.store.get(ID)
    assert after is not None
    assert after.state is (row.undone or start)
    if after.state is start:
        assert after == before


@pytest.mark.parametrize(("row", "start"), FROM, ids=lambda value: getattr(value, "verb", value))
async def test_each_verb_whose_outcome_is_unknown_stays_under_way(bench: Bench, row: Passage, start: State) -> None:
    await bench.store.add(sandbox(start))
    with pytest.raises(OutcomeUnknown):
        async with bench.gate.passage(ID, row):
            raise OutcomeUnknown("lost")
    assert await bench.state() is (row.during or start)
    assert bench.bells.truth.is_set()


@pytest.mark.parametrize("row", VERBS, ids=lambda row: row.verb)
async def test_each_verb_holds_and_is_refused_where_its_row_says(bench: Bench, row: Passage) -> None:
    for number, state in enumerate(sorted(set(State) - row.starts)):
        other = SandboxId(f"sbx-{number:016d}")
        await bench.store.add(replace(sandbox(state), id=other))
        if state in row.holds:
            async with bench.gate.passage(other, row) as crossing:
                assert crossing.holds
        else:
            refusal = {State.DELETED: NotFound, State.FAILED: SandboxLost}.get(state, Conflict)
            with pytest.raises(refusal):
                async with bench.gate.passage(other, row):
                    pytest.fail("a refused passage must not be entered")
        found = await bench.store.get(other)
        assert found is not None
        assert found.state is state


async def test_a_failed_sandbox_that_runs_again_has_no_reason_any_more(bench: Bench) -> None:
    await bench.store.add(replace(sandbox(State.FAILED), reason="its machine died"))
    async with bench.gate.passage(ID, ROLLBACK) as crossing:
        assert crossing.sandbox.reason == "its machine died"
    assert crossing.sandbox == sandbox(State.RUNNING)


async def test_a_passage_of_nobody_is_not_found(bench: Bench) -> None:
    with pytest.raises(NotFound):
        async with bench.gate.passage(ID, DELETE):
            pytest.fail("a refused passage must not be entered")


@pytest.mark.parametrize("error", DEFINITE, ids=lambda error: error.code)
@pytest.mark.parametrize("row", [CREATE, DELETE], ids=lambda row: row.verb)
async def test_a_definite_failure_settles_as_undone_and_is_raised(
    bench: Bench, row: Passage, error: TorporError
) -> None:
    await _enter_and_raise(bench, row, error)
    found = await bench.store.get(ID)
    assert found is not None
    assert found.state is row.undone
    assert found.reason == f"{row.verb}: {error.message}"
    assert not bench.bells.truth.is_set()


@pytest.mark.parametrize("error", [OutcomeUnknown("lost"), RuntimeError("a bug"), asyncio.CancelledError()])
@pytest.mark.parametrize("row", [CREATE, DELETE], ids=lambda row: row.verb)
async def test_anything_else_leaves_the_state_and_asks_for_the_truth(
    bench: Bench, row: Passage, error: BaseException
) -> None:
    await _enter_and_raise(bench, row, error)
    assert await bench.state() is row.during
    assert bench.bells.truth.is_set()


async def _enter_and_raise(bench: Bench, row: Passage, error: BaseException) -> None:
    if row is not CREATE:
        await bench.store.add(sandbox(State.RUNNING))
    way = bench.gate.creation(sandbox(), None) if row is CREATE else bench.gate.passage(ID, row)
    with pytest.raises(type(error)) as raised:
        async with way:
            raise error
    assert raised.value is error


async def test_a_claim_of_an_earlier_sandbox_holds_and_records_nothing(bench: Bench) -> None:
    earlier = replace(sandbox(State.RUNNING), id=SandboxId("sbx-2222222222222222"))
    await bench.store.add(earlier, Claim("k", "d"))
    async with bench.gate.creation(sandbox(), Claim("k", "d")) as crossing:
        assert crossing.holds
        assert crossing.sandbox == earlier
    assert await bench.store.get(ID) is None


async def test_of_two_deletions_at_once_one_does_the_work_and_both_succeed(bench: Bench) -> None:
    await bench.store.add(sandbox(State.RUNNING))
    worked, inside, go_on = [], asyncio.Event(), asyncio.Event()

    async def deletion(name: str) -> None:
        async with bench.gate.passage(ID, DELETE) as crossing:
            if not crossing.holds:
                worked.append(name)
                inside.set()
                await go_on.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(deletion("first"))
        await inside.wait()
        assert bench.gate.is_busy(ID)
        group.create_task(deletion("second"))
        go_on.set()
    assert worked == ["first"]
    assert not bench.gate.is_busy(ID)


async def test_a_cancellation_while_it_is_recorded_does_not_keep_it_from_being_recorded() -> None:
    class Slow(MemoryStore):
        settling, go_on = asyncio.Event(), asyncio.Event()

        async def move(self, *args: object, **more: object) -> Sandbox | None:
            self.settling.set()
            await self.go_on.wait()
            return await super().move(*args, **more)  # type: ignore[arg-type]

    store = Slow()
    bench = Bench(store)

    async def creation() -> None:
        async with bench.gate.creation(sandbox(), None) as crossing:
            crossing.learn(boot_ms=5)

    task = asyncio.create_task(creation())
    await store.settling.wait()
    task.cancel()
    await asyncio.sleep(0)
    store.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await bench.state() is State.RUNNING


async def test_an_end_that_cannot_be_recorded_is_an_unknown_outcome() -> None:
    class Broken(MemoryStore):
        async def move(self, *args: object, **more: object) -> Sandbox | None:
            raise Failed("disk full")

    bench = Bench(Broken())
    with pytest.raises(OutcomeUnknown):
        async with bench.gate.creation(sandbox(), None):
            pass
    assert bench.bells.truth.is_set()


@pytest.mark.parametrize(
    ("seen", "to"),
    [
        (State.CREATING, State.RUNNING),
        (State.CREATING, State.DELETED),
        (State.DELETING, State.DELETED),
        (State.DELETING, State.FAILED),
        (State.SNAPSHOTTING, State.RUNNING),
        (State.SNAPSHOTTING, State.PAUSED),
        (State.HIBERNATING, State.HIBERNATED),
        (State.HIBERNATING, State.RUNNING),
        (State.HIBERNATING, State.PAUSED),
        (State.WAKING, State.RUNNING),
        (State.WAKING, State.HIBERNATED),
        (State.RESTORING, State.RUNNING),
        (State.RESTORING, State.HIBERNATED),
        (State.RESTORING, State.PAUSED),
        *itertools.permutations([State.RUNNING, State.PAUSED, State.HIBERNATED], 2),
        *((state, State.FAILED) for state in sorted(set(State) - {State.CREATING, State.DELETED, State.FAILED})),
    ],
)
async def test_the_reconciler_may_correct_along_the_table(bench: Bench, seen: State, to: State) -> None:
    await bench.store.add(sandbox(seen))
    await bench.gate.correct(sandbox(seen), to, reason="the host said so")
    assert await bench.state() is to


@pytest.mark.parametrize(
    ("seen", "to"),
    [
        (State.RUNNING, State.DELETED),
        (State.DELETED, State.RUNNING),
        (State.FAILED, State.RUNNING),
        (State.CREATING, State.FAILED),
        (State.HIBERNATED, State.WAKING),
        (State.DELETING, State.RUNNING),
    ],
)
async def test_a_correction_the_table_does_not_have_is_a_bug(bench: Bench, seen: State, to: State) -> None:
    await bench.store.add(sandbox(seen))
    with pytest.raises(ValueError, match="no passage"):
        await bench.gate.correct(sandbox(seen), to)
    assert await bench.state() is seen


async def test_a_correction_of_a_state_that_has_changed_does_nothing(bench: Bench) -> None:
    await bench.store.add(sandbox(State.DELETED))
    await bench.gate.correct(sandbox(State.RUNNING), State.FAILED, reason="late")
    assert await bench.state() is State.DELETED
