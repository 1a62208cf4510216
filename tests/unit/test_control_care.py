"""The small parts by which the server takes care of sandboxes, each on its own."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from torpor.control.service.activity import Activity
from torpor.control.service.attempts import AT_MOST, WITHIN_S, Attempts
from torpor.control.service.chores import Chore, Chores
from torpor.control.service.once import Once
from torpor.control.service.pace import Pace
from torpor.errors import Busy
from torpor.model.ids import SandboxId, TemplateName, WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.sandbox import Care, Sandbox
from torpor.model.snapshot import Kind
from torpor.testing.clock import JumpClock

ID = SandboxId("sbx-1111111111111111")
OTHER = SandboxId("sbx-2222222222222222")


@pytest.fixture
def clock() -> JumpClock:
    return JumpClock()


@pytest.fixture
def activity(clock: JumpClock) -> Activity:
    return Activity(clock)


def sandbox(care: Care, state: State = State.RUNNING) -> Sandbox:
    return Sandbox(
        id=ID,
        workspace=WorkspaceId("default"),
        template=TemplateName("base"),
        state=state,
        created_at=JumpClock().now(),
        cpu=1,
        memory_mb=512,
        disk_gb=8,
        care=care,
    )


async def test_idleness_is_counted_from_the_end_of_the_last_call(clock: JumpClock, activity: Activity) -> None:
    async with activity.using(ID), activity.using(ID):
        await clock.jump(10)
        assert (activity.in_flight(ID), activity.idle_s(ID)) == (2, 0.0)
    await clock.jump(3)
    assert (activity.in_flight(ID), activity.idle_s(ID)) == (0, 3.0)
    activity.touch(ID)
    assert activity.idle_s(ID) == 0.0


async def test_a_sandbox_that_nobody_has_heard_of_begins_to_be_idle_now(clock: JumpClock, activity: Activity) -> None:
    await clock.jump(100)
    assert activity.idle_s(ID) == 0.0
    await clock.jump(5)
    assert activity.idle_s(ID) == 5.0


async def test_a_call_that_fails_is_over_too(activity: Activity) -> None:
    with pytest.raises(Busy):
        async with activity.using(ID):
            raise Busy("later")
    assert activity.in_flight(ID) == 0


async def test_what_is_in_use_is_not_swept(clock: JumpClock, activity: Activity) -> None:
    activity.touch(ID)
    await clock.jump(10)
    async with activity.using(ID):
        with activity.sweeping(ID, 5) as is_idle:
            assert not is_idle
    with activity.sweeping(ID, 5) as is_idle:
        assert not is_idle, "its idle time has begun anew"


async def test_a_call_that_comes_during_a_sweep_waits_for_its_end(clock: JumpClock, activity: Activity) -> None:
    activity.touch(ID)
    await clock.jump(10)
    order: list[str] = []

    async def call() -> None:
        async with activity.using(ID):
            order.append("call")

    with activity.sweeping(ID, 10) as is_idle:
        assert is_idle
        with activity.sweeping(ID, 10) as second:
            assert not second
        calling = asyncio.create_task(call())
        async with activity.using(OTHER):
            await clock.jump(1)
        order.append("swept")
    await calling
    assert order == ["swept", "call"]


async def test_what_is_gone_is_forgotten_unless_it_is_in_use(clock: JumpClock, activity: Activity) -> None:
    activity.touch(ID)
    async with activity.using(OTHER):
        await clock.jump(10)
        activity.forget_others(set())
        assert activity.in_flight(OTHER) == 1
    assert activity.idle_s(ID) == 0.0


async def test_three_attempts_are_allowed_within_ten_minutes(clock: JumpClock) -> None:
    attempts = Attempts(clock)
    for _ in range(AT_MOST):
        assert attempts.may_begin(ID)
        attempts.count(ID)
        await clock.jump(1)
    assert not attempts.may_begin(ID)
    assert attempts.may_begin(OTHER)
    await clock.jump(WITHIN_S - AT_MOST)
    assert attempts.may_begin(ID)


def test_what_was_told_is_told_once() -> None:
    once = Once()
    assert [once.is_first("end", "a"), once.is_first("end", "a"), once.is_first("end", "b")] == [True, False, True]
    assert not any(once.is_first("end", str(number)) and once.is_first("end", str(number)) for number in range(5000))
    assert once.is_first("end", "a"), "it is forgotten after some thousand others"


async def test_there_is_one_chore_of_a_kind_for_each_sandbox() -> None:
    chores, go, done = Chores(), asyncio.Event(), []

    async def work(name: str) -> None:
        await go.wait()
        done.append(name)

    chores.begin(Chore.SWEEP, ID, lambda: work("first"))
    chores.begin(Chore.SWEEP, ID, lambda: work("second"))
    chores.begin(Chore.CHECKPOINT, ID, lambda: work("other kind"))
    chores.begin(Chore.SWEEP, OTHER, lambda: work("other sandbox"))
    assert chores.is_under_way(Chore.SWEEP, ID)
    go.set()
    assert await chores.wait_over(Chore.SWEEP, ID)
    assert not await chores.wait_over(Chore.SWEEP, ID)
    await chores.aclose()
    assert sorted(done) == ["first", "other kind", "other sandbox"]


async def test_a_chore_that_fails_harms_no_other_and_can_be_begun_again() -> None:
    chores, done = Chores(), asyncio.Event()

    async def fails() -> None:
        raise Busy("later")

    async def breaks() -> None:
        raise ZeroDivisionError

    async def works() -> None:
        done.set()

    for work in (fails, breaks, works):
        chores.begin(Chore.SWEEP, ID, work)
        await chores.wait_over(Chore.SWEEP, ID)
    assert done.is_set()
    await chores.aclose()


async def test_closing_ends_chores_and_begins_none() -> None:
    chores, begun = Chores(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    chores.begin(Chore.RECOVERY, ID, work)
    await begun.wait()
    await chores.aclose()
    assert not chores.is_under_way(Chore.RECOVERY, ID)
    chores.begin(Chore.RECOVERY, ID, work)
    assert not chores.is_under_way(Chore.RECOVERY, ID)


async def test_only_seconds_of_running_count_for_the_pace(clock: JumpClock) -> None:
    pace = Pace(clock, asyncio.Event())
    runs = sandbox(Care(checkpoint_every_seconds=100))
    pace.look(runs, 10)
    await clock.jump(20)
    pace.look(replace(runs, state=State.PAUSED))
    await clock.jump(1000)
    pace.look(runs)
    assert pace.left_s(runs) == 70
    await clock.jump(30)
    pace.look(replace(runs, state=State.SNAPSHOTTING))
    pace.kept(ID, Kind.FORK)
    assert pace.left_s(runs) == 40
    pace.kept(ID, Kind.CHECKPOINT)
    assert pace.left_s(runs) == 100
    await clock.jump(250)
    pace.look(runs)
    assert pace.left_s(runs) == 0


async def test_the_pace_counts_commands_also_those_before_the_first_look(clock: JumpClock) -> None:
    bell = asyncio.Event()
    pace = Pace(clock, bell)
    runs = sandbox(Care(checkpoint_every_execs=3))
    pace.command_ended(ID)
    pace.look(runs)
    assert (pace.left_s(runs), bell.is_set()) == (None, False)
    pace.command_ended(ID)
    pace.command_ended(ID)
    assert (pace.left_s(runs), bell.is_set()) == (0, True)
    pace.command_ended(ID)
    pace.begin_anew(runs)
    assert pace.left_s(runs) is None
    pace.command_ended(ID)
    pace.command_ended(ID)
    assert pace.left_s(runs) == 0, "the fourth command counted for the second checkpoint"
