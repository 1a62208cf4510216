"""The reconciler: each row of its table, against a host that may be anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Literal

import pytest

from control_rig import Rig, control_rig, mine
from torpor.control.reconcile import Verdict, decide, reconcile, reconcile_one, watch
from torpor.control.service.delete import delete
from torpor.errors import Busy, HostUnreachable
from torpor.model.ids import SandboxId, TemplateName, WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox
from torpor.testing.clock import JumpClock
from torpor.testing.host import FakeHost
from torpor.wire.host import Incarnation, Network

ID = SandboxId("sbx-1111111111111111")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


def recorded(state: State, sandbox_id: SandboxId = ID) -> Sandbox:
    return Sandbox(
        id=sandbox_id,
        workspace=WorkspaceId("default"),
        template=TemplateName("base"),
        state=state,
        created_at=JumpClock().now(),
        cpu=1,
        memory_mb=512,
        disk_gb=8,
    )


def alive() -> Incarnation:
    return FakeHost().begin(ID).facts


def dead() -> Incarnation:
    return alive().model_copy(update={"alive": False, "reason": "SIGKILL"})


def absent() -> None:
    return None


def paused() -> Incarnation:
    return alive().model_copy(update={"status": "paused"})


def asleep() -> Incarnation:
    return alive().model_copy(update={"status": "asleep", "pid": None})


FOUND = (absent, alive, paused, asleep, dead)
N, L, C = Verdict.NOTHING, Verdict.LOST, Verdict.CLOSE
RUNS, STANDS, SLEEPS = Verdict.RUNS, Verdict.STANDS, Verdict.SLEEPS
# What is recorded, and the verdict for each of FOUND.
TABLE: dict[State | None, tuple[Verdict, ...]] = {
    None: (N, *[Verdict.STRAY] * 4),
    State.CREATING: (C, RUNS, C, C, C),
    State.RUNNING: (L, N, STANDS, SLEEPS, L),
    State.PAUSED: (L, RUNS, N, SLEEPS, L),
    State.SNAPSHOTTING: (L, RUNS, STANDS, SLEEPS, L),
    State.HIBERNATING: (L, RUNS, STANDS, SLEEPS, L),
    State.HIBERNATED: (L, RUNS, STANDS, N, L),
    State.WAKING: (L, RUNS, STANDS, SLEEPS, L),
    State.RESTORING: (L, RUNS, STANDS, SLEEPS, L),
    State.DELETING: (C, C, C, C, C),
    State.DELETED: (N, *[Verdict.STRAY] * 4),
    State.FAILED: (N, N, N, N, N),
}
ROWS: list[tuple[State | None, Callable[[], Incarnation | None], Verdict]] = [
    (state, found, verdict) for state, verdicts in TABLE.items() for found, verdict in zip(FOUND, verdicts, strict=True)
]
AFTER = {
    Verdict.RUNS: State.RUNNING,
    Verdict.STANDS: State.PAUSED,
    Verdict.SLEEPS: State.HIBERNATED,
    Verdict.LOST: State.FAILED,
    Verdict.CLOSE: State.DELETED,
}


def test_the_table_has_every_state() -> None:
    assert set(TABLE) == {None, *State}


@pytest.mark.parametrize(("state", "found", "verdict"), ROWS)
def test_each_difference_has_its_verdict(
    state: State | None, found: Callable[[], Incarnation | None], verdict: Verdict
) -> None:
    assert decide(None if state is None else recorded(state), found()) is verdict


@pytest.mark.parametrize(("state", "found", "verdict"), ROWS)
async def test_each_verdict_is_carried_out_once_and_then_there_is_no_difference(
    rig: Rig, state: State | None, found: Callable[[], Incarnation | None], verdict: Verdict
) -> None:
    if state is not None:
        await rig.store.add(recorded(state))
    if found is not absent:
        rig.host.begin(ID)
    if found is dead:
        rig.host.die(ID, "SIGKILL")
    if found in (paused, asleep):
        rig.host.machines[ID].become("paused" if found is paused else "asleep")
    assert await reconcile(rig.plane) == (0 if verdict is Verdict.NOTHING else 1)
    after = AFTER.get(verdict, state)
    assert await rig.status(ID) == (None if after is None else after.value)
    if verdict in (Verdict.CLOSE, Verdict.STRAY):
        assert ID not in rig.host.machines
    assert await reconcile(rig.plane) == 0


@pytest.mark.parametrize("state", [State.RUNNING, State.PAUSED, State.HIBERNATED])
@pytest.mark.parametrize(("policy", "verdict"), [(None, N), ("none", N), ("internet", Verdict.TELL)])
def test_a_host_that_has_another_policy_than_the_record_is_told(
    state: State, policy: Literal["none", "internet"] | None, verdict: Verdict
) -> None:
    found = {State.RUNNING: alive, State.PAUSED: paused, State.HIBERNATED: asleep}[state]()
    in_force = None if policy is None else Network(mode=policy)
    assert decide(recorded(state), found.model_copy(update={"network": in_force})) is verdict


async def test_a_creation_found_alive_takes_the_machines_facts(rig: Rig) -> None:
    await rig.store.add(recorded(State.CREATING))
    machine = rig.host.begin(ID)
    machine.facts = machine.facts.model_copy(update={"boot_ms": 123, "memory_mb": 256})
    await reconcile(rig.plane)
    assert await rig.store.get(ID) == replace(recorded(State.RUNNING), boot_ms=123, memory_mb=256)


@pytest.mark.parametrize(("kill", "reason"), [(True, "out of memory"), (False, "not on the host")])
async def test_a_lost_machine_fails_its_sandbox_with_the_reason(rig: Rig, kill: bool, reason: str) -> None:
    made = await rig.create()
    rig.host.die(made, "out of memory") if kill else rig.host.vanish(made)
    await reconcile(rig.plane)
    sandbox = await rig.store.get(SandboxId(made))
    assert sandbox is not None
    assert sandbox.state is State.FAILED
    assert reason in (sandbox.reason or "")


async def test_a_sandbox_with_a_passage_under_way_is_left_to_it(rig: Rig) -> None:
    hold = rig.host.hold("restore")
    async with asyncio.TaskGroup() as group:
        creating = group.create_task(rig.create())
        await hold.reached.wait()
        assert await reconcile(rig.plane) == 0
        hold.release()
    assert await rig.status(creating.result()) == "running"


async def test_one_that_cannot_be_mended_does_not_keep_the_others_from_it(rig: Rig) -> None:
    first, second = SandboxId("sbx-1111111111111111"), SandboxId("sbx-2222222222222222")
    for sandbox_id in (first, second):
        await rig.store.add(recorded(State.DELETING, sandbox_id))
        rig.host.begin(sandbox_id)
    rig.host.fail("close", Busy("not now"))
    assert await reconcile(rig.plane) == 2
    assert [await rig.status(first), await rig.status(second)] == ["deleting", "deleted"]
    await reconcile(rig.plane)
    assert await rig.status(first) == "deleted"


async def test_a_host_that_cannot_be_reached_changes_nothing(rig: Rig) -> None:
    made = await rig.create()
    rig.host.down = True
    with pytest.raises(HostUnreachable):
        await reconcile(rig.plane)
    assert await rig.status(made) == "running"


async def test_one_sandbox_is_compared_after_what_is_under_way(rig: Rig) -> None:
    made = await rig.create()
    hold = rig.host.hold("close")
    async with asyncio.TaskGroup() as group:
        group.create_task(delete(rig.plane, mine(made)))
        await hold.reached.wait()
        comparing = group.create_task(reconcile_one(rig.plane, SandboxId(made)))
        await asyncio.sleep(0)
        assert not comparing.done()
        hold.release()
    assert await rig.status(made) == "deleted"


async def test_the_watcher_notices_a_dead_machine_within_its_interval(rig: Rig) -> None:
    made = await rig.create()
    watching = asyncio.create_task(watch(rig.plane, every_s=2))
    await rig.clock.wait_sleepers()
    rig.host.die(made)
    await rig.clock.jump(1.9)
    assert await rig.status(made) == "running"
    await rig.clock.jump(0.1)
    await rig.clock.wait_sleepers()
    assert await rig.status(made) == "failed"
    watching.cancel()
    await asyncio.wait([watching])


async def test_the_watcher_outlives_a_host_that_is_away(rig: Rig) -> None:
    made = await rig.create()
    watching = asyncio.create_task(watch(rig.plane, every_s=2))
    rig.host.down = True
    await rig.clock.jump(4)
    rig.host.down = False
    rig.host.die(made)
    await rig.clock.jump(2)
    await rig.clock.wait_sleepers()
    assert await rig.status(made) == "failed"
    watching.cancel()
    await asyncio.wait([watching])


async def test_the_watcher_looks_at_once_after_a_lost_answer(rig: Rig) -> None:
    watching = asyncio.create_task(watch(rig.plane, every_s=1000))
    await rig.clock.wait_sleepers()
    rig.host.lose_answer("restore")
    answer = await rig.http.post("/v1/sandboxes", json={})
    assert (answer.status_code, answer.json()["code"]) == (500, "outcome_unknown")
    await rig.clock.jump(0)
    (only,) = await rig.store.living()
    assert only.state is State.RUNNING
    watching.cancel()
    await asyncio.wait([watching])
