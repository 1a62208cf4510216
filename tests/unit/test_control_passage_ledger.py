"""What a passage leaves in the ledger and in the events, also when it is cut off."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gate_bench import ID, Bench, sandbox
from torpor.control.store.contract import AccountListing, EventListing
from torpor.errors import (
    Busy,
)
from torpor.kit import faultpoints
from torpor.model.ids import WorkspaceId
from torpor.model.lifecycle import DELETE, HIBERNATE, State
from torpor.model.usage import Reading


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def states(bench: Bench) -> list[tuple[str, float]]:
    """Return the states of the ledger, each with the seconds for which it held."""
    (account,) = await bench.store.accounts(AccountListing(WorkspaceId("default"), sandbox=ID))
    return [(one.state.value, (one.ended_at - one.began_at).total_seconds()) for one in account.intervals]


async def told(bench: Bench) -> list[tuple[str, str | None, str]]:
    """Return what the events say of states: verb, from, to."""
    found = await bench.store.events(EventListing(WorkspaceId("default"), types=frozenset({"state"})))
    return [(event.data["verb"], event.data["from"], event.data["to"]) for event in found]


async def test_a_passage_is_in_the_ledger_and_in_the_events_with_what_the_host_read(bench: Bench) -> None:
    async with bench.gate.creation(sandbox(), None):
        await bench.clock.jump(2)
    await bench.clock.jump(5)
    coming = bench.bells.news.coming
    async with bench.gate.passage(ID, HIBERNATE) as crossing:
        assert coming.is_set()
        await bench.clock.jump(1)
        crossing.reading = Reading(cpu_seconds=3)
    assert await states(bench) == [("creating", 2), ("running", 5), ("hibernating", 1), ("hibernated", 0)]
    assert await told(bench) == [
        ("create", None, "creating"),
        ("create", "creating", "running"),
        ("hibernate", "running", "hibernating"),
        ("hibernate", "hibernating", "hibernated"),
    ]
    (account,) = await bench.store.accounts(AccountListing(WorkspaceId("default")))
    assert sum(one.cpu_seconds for one in account.intervals) == 3


async def test_a_passage_that_is_undone_is_told_with_its_reason(bench: Bench) -> None:
    await bench.store.add(sandbox(State.RUNNING))
    with pytest.raises(Busy):
        async with bench.gate.passage(ID, DELETE):
            raise Busy("later")
    found = await bench.store.events(EventListing(WorkspaceId("default")))
    assert [(event.type, dict(event.data)) for event in found][-2:] == [
        ("state", {"verb": "delete", "from": "deleting", "to": "failed", "reason": "delete: later"}),
        ("failed", {"reason": "delete: later", "last_snapshot": None}),
    ]


async def test_a_loss_is_told_as_of_the_last_heartbeat_and_a_sleep_as_of_its_beginning(bench: Bench) -> None:
    await bench.store.add(sandbox(State.RUNNING))
    await bench.clock.jump(10)
    await bench.store.beat(bench.clock.now(), {ID: Reading()})
    await bench.clock.jump(100)
    asleep_since = bench.clock.now() - timedelta(seconds=70)
    await bench.gate.correct(sandbox(State.RUNNING), State.HIBERNATED, since=asleep_since, reading=Reading(4))
    assert await states(bench) == [("running", 40), ("hibernated", 0)]
    await bench.gate.correct(sandbox(State.HIBERNATED), State.FAILED, reason="gone")
    assert await states(bench) == [("running", 40), ("hibernated", 0), ("failed", 0)]
    assert (await told(bench))[1:] == [("recover", "running", "hibernated"), ("recover", "hibernated", "failed")]


@pytest.mark.parametrize(
    ("point", "left"),
    [
        ("passage.begun", State.HIBERNATING),
        ("passage.answered", State.HIBERNATING),
        ("passage.settled", State.HIBERNATED),
    ],
)
async def test_a_passage_that_is_cut_off_at_a_point_has_recorded_what_it_says(
    bench: Bench, point: str, left: State
) -> None:
    class Cut(BaseException):
        pass

    def cut(reached: str) -> None:
        if reached == point:
            raise Cut

    await bench.store.add(sandbox(State.RUNNING))
    faultpoints.watch(cut)
    try:
        with pytest.raises(Cut):
            async with bench.gate.passage(ID, HIBERNATE):
                pass
    finally:
        faultpoints.watch(None)
    assert await bench.state() is left
