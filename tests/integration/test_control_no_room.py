"""What the control plane does with a host that has no room: nothing is made, all stays as it was, later it works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest

from control_rig import PATIENCE_S, Rig, control_rig
from torpor.control.reconcile import reconcile
from torpor.control.service.recovery import begin_recoveries
from torpor.errors import OutOfSpace
from torpor.model.capacity import Limits
from torpor.wire.errors import NO_CAPACITY_RETRY_AFTER_S


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as rig:
        yield rig


def check_refused(answer: httpx2.Response) -> str:
    """Check that an answer says that there is no room for a machine, with figures, and return the sentence."""
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["retryable"]) == (503, "no_capacity", True)
    assert answer.headers["retry-after"] == str(NO_CAPACITY_RETRY_AFTER_S)
    assert problem["details"]["limit"] >= problem["details"]["used"] >= 0
    assert problem["hint"]
    said: str = problem["error"]
    return said


async def test_a_create_without_room_is_refused_and_the_same_request_works_later(rig: Rig) -> None:
    made = await rig.create()
    rig.host.room.limits = Limits(machines=1)
    headers = {"idempotency-key": "k"}
    said = check_refused(await rig.http.post("/v1/sandboxes", json={}, headers=headers))
    assert "1 of 1 machines are there" in said
    assert [one.id for one in await rig.store.living()] == [made]
    rig.host.room.limits = Limits(machines=2)
    assert (await rig.http.post("/v1/sandboxes", json={}, headers=headers)).status_code == 201


@pytest.mark.parametrize("state", ["running", "hibernated"])
async def test_a_fork_is_decided_for_all_children_before_anything_is_made(rig: Rig, state: str) -> None:
    parent = await rig.create()
    if state == "hibernated":
        await rig.post(parent, "hibernate")
    rig.host.room.limits, kept = Limits(machines=3), set(rig.host.snapshots)
    for _ in range(2):
        check_refused(await rig.http.post(f"/v1/sandboxes/{parent}/fork", json={"count": 4}))
    assert (rig.host.calls["restore"], rig.host.calls["snapshot"]) == (1, 0)
    assert (set(rig.host.machines), set(rig.host.snapshots)) == ({parent}, kept)
    assert (await rig.show(parent))["status"] == state
    assert (await rig.http.post(f"/v1/sandboxes/{parent}/fork", json={"count": 2})).status_code == 201
    assert rig.host.room.reserved == {}


async def test_room_that_was_held_for_a_fork_is_given_up_if_its_parent_cannot_be_frozen(rig: Rig) -> None:
    parent = await rig.create()
    rig.host.fail("snapshot", OutOfSpace("the host's disk is full"))
    answer = await rig.http.post(f"/v1/sandboxes/{parent}/fork", json={"count": 2})
    assert (answer.status_code, answer.json()["code"]) == (507, "out_of_space")
    assert rig.host.room.reserved == {}
    assert [one.id for one in await rig.store.living()] == [parent]


async def test_room_for_a_fork_whose_answer_was_lost_is_given_up(rig: Rig) -> None:
    parent = await rig.create()
    rig.host.lose_answer("reserve")
    assert (await rig.http.post(f"/v1/sandboxes/{parent}/fork", json={})).json()["code"] == "outcome_unknown"
    assert rig.host.room.reserved == {}
    await reconcile(rig.plane)
    assert [one.id for one in await rig.store.living()] == [parent]


async def test_a_command_for_one_that_sleeps_is_refused_without_room_and_it_sleeps_on(rig: Rig) -> None:
    sleeper = await rig.create()
    await rig.write(sleeper, "kept")
    await rig.post(sleeper, "hibernate")
    await rig.create()
    rig.host.room.limits = Limits(machines=1)
    for _ in range(2):
        check_refused(await rig.http.post(f"/v1/sandboxes/{sleeper}/exec", json={"cmd": "true"}))
        check_refused(await rig.http.post(f"/v1/sandboxes/{sleeper}/wake", json={}))
        assert (await rig.show(sleeper))["status"] == "hibernated"
    rig.host.room.limits = Limits()
    assert await rig.read(sleeper) == "kept"


async def test_a_rollback_without_room_leaves_the_sandbox_as_it_was(rig: Rig) -> None:
    made = await rig.create()
    taken = await rig.post(made, "snapshots")
    await rig.write(made, "newer")
    rig.host.room.limits = Limits(machines=1)
    check_refused(await rig.http.post(f"/v1/sandboxes/{made}/rollback", json={"snapshot": taken["id"]}))
    assert (await rig.show(made))["status"] == "running"
    assert await rig.read(made) == "newer"


async def test_a_recovery_without_room_is_tried_again_until_there_is_some(rig: Rig) -> None:
    lost = await rig.create(on_crash="restore")
    await rig.write(lost, "kept")
    await rig.post(lost, "snapshots")
    other = await rig.create()
    rig.host.room.limits = Limits(machines=1)
    rig.host.die(lost)
    await reconcile(rig.plane)
    for tries, wait_s in enumerate((5, 10, 20, 40, 60), start=1):  # more often than a restore that fails is tried
        await rig.clock.wait_sleepers(1)
        assert rig.host.calls["rollback"] == tries
        assert await rig.status(lost) == "failed"
        await rig.clock.jump(wait_s)
    await rig.clock.wait_sleepers(1)
    assert (await rig.http.delete(f"/v1/sandboxes/{other}")).status_code == 204
    await rig.clock.jump(60)
    await rig.wait_status(lost, "running")
    assert await rig.read(lost) == "kept"


async def test_recoveries_at_the_start_wait_for_room_too(rig: Rig) -> None:
    made = [await rig.create(on_crash="restore") for _ in range(3)]
    for one in made:
        await rig.post(one, "snapshots")
        rig.host.die(one)
    rig.plane.recoveries.has_caught_up = True
    rig.host.room.limits = Limits(machines=2)
    await reconcile(rig.plane)
    rig.plane.recoveries.has_caught_up = False
    await begin_recoveries(rig.plane)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            coming = rig.plane.bells.news.coming
            if sorted([str(await rig.status(one)) for one in made]) == ["failed", "running", "running"]:
                break
            await coming.wait()
    await rig.clock.wait_sleepers(1)
    rig.host.room.limits = Limits()
    await rig.clock.jump(60)
    for one in made:
        await rig.wait_status(one, "running")


async def test_a_host_without_disk_is_an_error_that_is_not_tried_again_and_says_how_full_it_is(rig: Rig) -> None:
    rig.host.fail("restore", OutOfSpace("the host's disk is full: 10 of 1000 MiB are free", hint="delete snapshots"))
    answer = await rig.http.post("/v1/sandboxes", json={})
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["retryable"]) == (507, "out_of_space", False)
    assert "10 of 1000 MiB are free" in problem["error"]
    assert await rig.store.living() == []
