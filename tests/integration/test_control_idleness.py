"""Sandboxes that nobody uses are put to sleep, or deleted, and no call ever suffers from it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from control_rig import PATIENCE_S, Rig, control_rig
from torpor.control.idleness import sweep
from torpor.control.service.chores import Chore
from torpor.errors import Busy, HostUnreachable, OutOfSpace
from torpor.model.ids import SandboxId

BIG = 50_000_000


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made, made.working(sweep(made.plane)):
        yield made


async def test_a_sandbox_that_nobody_uses_falls_asleep_after_its_idle_time_and_not_before(rig: Rig) -> None:
    made = await rig.create(idle_timeout_seconds=60, persistent=True)
    other = await rig.create()
    await rig.clock.jump(59)
    assert await rig.status(made) == "running"
    await rig.clock.jump(1)
    await rig.wait_status(made, "hibernated")
    assert await rig.told(made, "idle") == [("idle", {"action": "hibernate"})]
    await rig.clock.jump(3000)
    assert await rig.status(other) == "running"


async def test_after_a_long_gap_a_command_wakes_it_and_finds_everything_there(rig: Rig) -> None:
    made = await rig.create(idle_timeout_seconds=60, persistent=True)
    await rig.write(made, "kept")
    await rig.clock.jump(60)
    await rig.wait_status(made, "hibernated")
    await rig.clock.jump(100_000)
    answer = await rig.http.post(f"/v1/sandboxes/{made}/exec", json={"cmd": "cat /work/note"})
    assert (answer.status_code, answer.json()["stdout"]) == (200, "kept")
    await rig.clock.jump(59)
    assert await rig.status(made) == "running", "its idle time has begun anew"
    await rig.clock.jump(1)
    await rig.wait_status(made, "hibernated")


async def test_a_sandbox_may_wish_to_be_deleted_when_it_is_idle(rig: Rig) -> None:
    made = await rig.create(idle_timeout_seconds=60, on_idle="delete")
    await rig.clock.jump(60)
    await rig.wait_status(made, "deleted")
    assert made not in rig.host.machines
    assert await rig.told(made, "idle") == [("idle", {"action": "delete"})]


async def test_a_paused_sandbox_is_idle_too(rig: Rig) -> None:
    made = await rig.create(idle_timeout_seconds=60)
    await rig.clock.jump(30)
    await rig.post(made, "pause")
    await rig.clock.jump(59)
    assert await rig.status(made) == "paused"
    await rig.clock.jump(1)
    await rig.wait_status(made, "hibernated")


@pytest.mark.parametrize("rest", ["exec", "exec/stream"])
async def test_a_command_in_flight_keeps_it_awake_however_long_it_runs(rig: Rig, rest: str) -> None:
    made = await rig.create(idle_timeout_seconds=10)
    url = f"/v1/sandboxes/{made}/{rest}"
    running = asyncio.create_task(rig.http.post(url, json={"cmd": "sleep 500"}))
    await rig.host.machines[made].started.wait()
    await rig.clock.jump(499)
    assert await rig.status(made) == "running"
    await rig.clock.jump(1)
    assert (await running).status_code == 200
    await rig.clock.jump(9)
    assert await rig.status(made) == "running"
    await rig.clock.jump(1)
    await rig.wait_status(made, "hibernated")


async def test_a_started_process_keeps_it_awake_though_nobody_listens(rig: Rig) -> None:
    made = await rig.create(idle_timeout_seconds=10)
    await rig.post(made, "processes", cmd="sleep 95")
    await rig.clock.jump(94)
    assert await rig.status(made) == "running"
    await rig.clock.jump(20)
    await rig.wait_status(made, "hibernated")


async def test_looking_at_it_does_not_keep_it_awake_nor_wakes_it(rig: Rig) -> None:
    made = await rig.create(idle_timeout_seconds=10)
    one = f"/v1/sandboxes/{made}"
    looks = ["/v1/sandboxes", one, f"{one}/lifecycle", f"{one}/logs", f"/v1/snapshots?sandbox_id={made}"]
    for _ in range(2):
        await rig.clock.jump(9)
        for url in looks:
            assert (await rig.http.get(url)).is_success
        await rig.clock.jump(1)
        await rig.wait_status(made, "hibernated")


@pytest.mark.parametrize(("verb", "body"), [("snapshots", {}), ("fork", {}), ("resume", {}), ("wake", {})])
async def test_what_a_user_asks_of_it_begins_its_idle_time_anew(rig: Rig, verb: str, body: dict[str, str]) -> None:
    made = await rig.create(idle_timeout_seconds=10)
    await rig.clock.jump(9)
    await rig.post(made, verb, **body)
    await rig.clock.jump(9)
    assert await rig.status(made) == "running"
    await rig.clock.jump(1)
    await rig.wait_status(made, "hibernated")


async def test_the_children_of_a_fork_have_their_parents_idle_time(rig: Rig) -> None:
    made = await rig.create(idle_timeout_seconds=10, on_idle="delete")
    child = (await rig.post(made, "fork"))["sandbox"]
    assert (child["idle_timeout_seconds"], child["on_idle"]) == (10, "delete")
    await rig.clock.jump(10)
    await rig.wait_status(child["id"], "deleted")


async def test_the_idle_time_can_be_seen_and_changed_and_counts_from_the_change(rig: Rig) -> None:
    made = await rig.create()
    url = f"/v1/sandboxes/{made}/lifecycle"
    await rig.clock.jump(100)
    changed = (await rig.http.patch(url, json={"idle_seconds": 10})).json()
    assert changed == (await rig.http.get(url)).json()
    assert (changed["idle_seconds"], changed["ttl_seconds"]) == (10, 3600)
    await rig.clock.jump(9)
    assert await rig.status(made) == "running"
    assert (await rig.http.patch(url, json={"idle_seconds": 0, "persistent": True})).json()["idle_seconds"] is None
    await rig.clock.jump(100_000)
    assert await rig.status(made) == "running"


async def test_a_sweep_that_failed_leaves_it_running_and_is_tried_again_after_the_idle_time(rig: Rig) -> None:
    made = await rig.create(idle_timeout_seconds=10)
    rig.host.fail("hibernate", OutOfSpace("the disk is full"))
    await rig.clock.jump(10)
    assert await rig.status(made) == "running"
    assert await rig.told(made, "idle") == [("idle", {"action": "hibernate", "error": "the disk is full"})]
    await rig.clock.jump(9)
    assert rig.host.calls["hibernate"] == 1
    await rig.clock.jump(1)
    await rig.wait_status(made, "hibernated")


async def test_a_host_that_cannot_tell_what_runs_is_asked_again(rig: Rig) -> None:
    made = await rig.create(idle_timeout_seconds=10)
    rig.host.fail("jobs", HostUnreachable("not there"))
    await rig.clock.jump(10)
    assert await rig.status(made) == "running"
    await rig.clock.jump(10)
    await rig.wait_status(made, "hibernated")


async def test_a_call_that_comes_just_before_the_sweep_wins(rig: Rig) -> None:
    made = await rig.create(idle_timeout_seconds=10)
    hold = rig.host.hold("jobs")
    await rig.clock.jump(10)
    await asyncio.wait_for(hold.reached.wait(), PATIENCE_S)
    await rig.write(made, "in time")
    hold.release()
    await rig.clock.jump(9)
    assert await rig.status(made) == "running"
    assert rig.host.calls["hibernate"] == 0


async def test_a_call_that_comes_during_the_sweep_waits_for_it_and_wakes_the_sandbox(rig: Rig) -> None:
    made = await rig.create(idle_timeout_seconds=10)
    await rig.write(made, "before")
    hold = rig.host.hold("hibernate")
    await rig.clock.jump(10)
    await asyncio.wait_for(hold.reached.wait(), PATIENCE_S)
    reading = asyncio.create_task(rig.read(made))
    await rig.clock.jump(5)
    assert not reading.done()
    hold.release()
    assert await asyncio.wait_for(reading, PATIENCE_S) == "before"
    assert await rig.status(made) == "running"


async def test_a_large_write_that_ends_just_as_the_idle_time_is_over_is_whole(rig: Rig) -> None:
    made = await rig.create(idle_timeout_seconds=2)
    data = bytes(range(250)) * (BIG // 250)

    async def slowly() -> AsyncIterator[bytes]:
        for start in range(0, BIG, BIG // 20):
            await rig.clock.sleep(0.2)  # four seconds in all, twice the idle time
            yield data[start : start + BIG // 20]

    url = f"/v1/sandboxes/{made}/fs"
    writing = asyncio.create_task(rig.http.put(url, params={"path": "/work/big"}, content=slowly()))
    while not writing.done():
        await rig.clock.jump(0.1)
    assert (await writing).json()["bytes"] == BIG
    await rig.clock.jump(2)
    await rig.wait_status(made, "hibernated")
    await rig.post(made, "wake")
    assert (await rig.http.get(url, params={"path": "/work/big"})).content == data


@pytest.mark.parametrize("seed", range(3))
async def test_no_call_ever_fails_because_of_the_sweeper(rig: Rig, seed: int) -> None:
    dice = random.Random(seed)
    sandboxes = [await rig.create(idle_timeout_seconds=1, persistent=True) for _ in range(3)]
    wrong: list[str] = []

    async def worker(number: int) -> None:
        for turn in range(60):
            made = dice.choice(sandboxes)
            path, text = f"/work/{number}", f"{number} {turn}"
            url = f"/v1/sandboxes/{made}/fs"
            calls = [
                await rig.http.put(url, params={"path": path}, content=text),
                await rig.http.get(url, params={"path": path}),
                await rig.http.post(
                    f"/v1/sandboxes/{made}/{dice.choice(['exec', 'exec/stream'])}", json={"cmd": "echo a"}
                ),
                await rig.http.post(f"/v1/sandboxes/{made}/wake"),
            ]
            wrong.extend(answer.text for answer in calls if not answer.is_success)
            if calls[1].text != text:
                wrong.append(f"{calls[1].text} was read, and {text} had been written")
            # About as long as the idle time, so that many calls come as a sweep is about to begin, begins, or ends.
            await rig.clock.sleep(dice.choice([0.5, 0.9, 0.99, 1.0, 1.0, 1.01, 1.1]))

    async with asyncio.timeout(120):
        working = asyncio.gather(*(worker(number) for number in range(4)))
        while not working.done():
            await rig.clock.jump(dice.choice([0.01, 0.1, 1.0]))
        await working
    assert wrong == []
    assert rig.host.calls["hibernate"] > 30, "nothing was raced"


async def test_a_sandbox_that_was_lost_while_it_was_idle_is_found_to_be_lost(rig: Rig) -> None:
    made = await rig.create(idle_timeout_seconds=10)
    rig.host.die(made)
    await rig.clock.jump(10)
    await rig.wait_status(made, "failed")


async def test_a_host_that_is_busy_is_asked_again(rig: Rig) -> None:
    made = await rig.create(idle_timeout_seconds=10, on_idle="delete")
    rig.host.fail("jobs", Busy("later"), times=2)
    await rig.clock.jump(29)
    assert await rig.status(made) == "running"
    await rig.clock.jump(1)
    await rig.wait_status(made, "deleted")


async def test_hosts_that_do_not_say_what_runs_keep_no_other_sandbox_awake(rig: Rig) -> None:
    stuck = [await rig.create(idle_timeout_seconds=60) for _ in range(4)]
    holds = [rig.host.hold("jobs") for _ in stuck]
    await rig.clock.jump(60)
    for hold in holds:
        await asyncio.wait_for(hold.reached.wait(), PATIENCE_S)
    other = await rig.create(idle_timeout_seconds=60)
    await rig.clock.jump(10)
    assert {await rig.status(one) for one in stuck} == {"running"}, "nobody knows that they are idle"
    await rig.clock.jump(50)
    await rig.wait_status(other, "hibernated")
    await rig.clock.jump(60)
    for one in stuck:
        await rig.wait_status(one, "hibernated")


async def test_one_that_its_owner_puts_to_sleep_is_not_deleted_for_being_idle(rig: Rig) -> None:
    made = await rig.create(idle_timeout_seconds=10, on_idle="delete")
    asking, freezing = rig.host.hold("jobs"), rig.host.hold("hibernate")
    await rig.clock.jump(10)
    await asyncio.wait_for(asking.reached.wait(), PATIENCE_S)
    sleeping = asyncio.create_task(rig.post(made, "hibernate"))
    await asyncio.wait_for(freezing.reached.wait(), PATIENCE_S)
    asking.release()
    await rig.plane.chores.wait_over(Chore.SWEEP, SandboxId(made))
    freezing.release()
    assert (await sleeping)["status"] == "hibernated"
    await rig.clock.jump(1000)
    assert await rig.status(made) == "hibernated"


async def test_a_sweep_that_waits_for_its_turn_goes_by_what_its_owner_wishes_for_then(rig: Rig) -> None:
    stuck = [await rig.create(idle_timeout_seconds=10) for _ in range(4)]
    holds = [rig.host.hold("jobs") for _ in stuck]
    await rig.clock.jump(5)
    made = await rig.create(idle_timeout_seconds=5, on_idle="delete")
    await rig.clock.jump(5)
    for hold in holds:
        await asyncio.wait_for(hold.reached.wait(), PATIENCE_S)
    assert rig.plane.chores.is_under_way(Chore.SWEEP, SandboxId(made)), "it waits for its turn"
    changed = await rig.http.patch(f"/v1/sandboxes/{made}/lifecycle", json={"idle_seconds": 0})
    assert changed.status_code == 200
    await rig.clock.jump(9)
    for hold in holds:
        hold.release()
    await rig.clock.jump(100)
    assert await rig.status(made) == "running"


async def test_a_code_context_that_waits_for_its_next_cell_is_no_work(rig: Rig) -> None:
    made = await rig.create(idle_timeout_seconds=60)
    context = await rig.post(made, "repl/sessions")
    await rig.post(made, f"repl/sessions/{context['id']}/run", code="1 + 1")
    await rig.clock.jump(60)
    await rig.wait_status(made, "hibernated")
