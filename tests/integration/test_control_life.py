"""How long a sandbox lives, and that its host is told when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from control_rig import PATIENCE_S, Rig, control_rig, mine
from torpor.control.reaper import reap
from torpor.control.reconcile import watch
from torpor.control.service.sandboxes import set_life
from torpor.errors import Busy


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with (
        control_rig() as made,
        made.working(reap(made.plane), watch(made.plane, 2.0), made.plane.deadlines.work(2.0)),
    ):
        yield made


def deadline(rig: Rig, made: str) -> float | None:
    """Return when the host ends a machine, in seconds from the beginning of the test, None for never."""
    at = rig.host.machines[made].deadline
    return None if at is None else at - START


START = 1893456000.0  # when a JumpClock begins


async def test_looking_at_a_sandbox_and_using_it_never_changes_its_end(rig: Rig) -> None:
    made = await rig.create(ttl_seconds=3600)
    before = (await rig.show(made))["expires_at"]
    for _ in range(3):
        await rig.clock.jump(100)
        assert (await rig.show(made))["expires_at"] == before
        await rig.post(made, "exec", cmd="true")
        await rig.post(made, "hibernate")
        await rig.post(made, "wake")
        assert (await rig.http.get(f"/v1/sandboxes/{made}/lifecycle")).json()["expires_at"] == before
    assert deadline(rig, made) == 3600


async def test_a_wake_with_a_ttl_sets_the_end_and_one_without_keeps_it(rig: Rig) -> None:
    made, kept = [await rig.create(ttl_seconds=100) for _ in range(2)]
    for one in (made, kept):
        await rig.post(one, "hibernate")
    await rig.clock.jump(50)
    await rig.post(made, "wake", ttl_seconds=10)
    await rig.post(kept, "wake")
    assert (deadline(rig, made), deadline(rig, kept)) == (60, 100)
    await rig.clock.jump(9)
    assert await rig.status(made) == "running"
    await rig.clock.jump(1)
    await rig.wait_status(made, "deleted")
    await rig.clock.jump(39)
    assert await rig.status(kept) == "running"
    await rig.clock.jump(1)
    await rig.wait_status(kept, "deleted")


async def test_one_that_sleeps_is_deleted_at_its_end_without_being_woken_and_that_is_noted(rig: Rig) -> None:
    made = await rig.create(ttl_seconds=100)
    await rig.post(made, "hibernate")
    await rig.clock.jump(100)
    await rig.wait_status(made, "deleted")
    assert rig.host.calls["wake"] == 0
    assert await rig.told(made, "expired") == [("expired", {})]


async def test_the_host_knows_the_end_from_the_beginning(rig: Rig) -> None:
    mortal, immortal = await rig.create(ttl_seconds=100), await rig.create(persistent=True)
    await rig.clock.jump(10)
    child = (await rig.post(mortal, "fork", ttl_seconds=30))["sandbox"]["id"]
    assert [deadline(rig, one) for one in (mortal, immortal, child)] == [100, None, 40]


async def test_the_host_is_told_of_every_change(rig: Rig) -> None:
    made = await rig.create(ttl_seconds=100)
    url = f"/v1/sandboxes/{made}/lifecycle"
    await rig.clock.jump(10)
    await rig.http.patch(url, json={"ttl_seconds": 500})
    assert deadline(rig, made) == 510
    await rig.http.patch(url, json={"persistent": True})
    assert deadline(rig, made) is None


async def test_a_rollback_of_one_that_was_lost_tells_its_end_to_the_host_again(rig: Rig) -> None:
    made = await rig.create(ttl_seconds=100)
    snapshot = (await rig.post(made, "snapshots"))["id"]
    rig.host.vanish(made)
    await rig.clock.jump(2)
    await rig.wait_status(made, "failed")
    await rig.post(made, "rollback", snapshot=snapshot)
    assert deadline(rig, made) == 100


@pytest.mark.parametrize("away", ["down", "busy"])
async def test_a_host_that_cannot_be_told_now_is_told_later_and_no_call_fails(rig: Rig, away: str) -> None:
    made = await rig.create(ttl_seconds=100)
    if away == "down":
        rig.host.down = True
    else:
        rig.host.fail("deadline", Busy("later"))
    answer = await rig.http.patch(f"/v1/sandboxes/{made}/lifecycle", json={"ttl_seconds": 500})
    assert answer.status_code == 200
    assert deadline(rig, made) == 100
    rig.host.down = False
    await rig.clock.jump(2)
    assert deadline(rig, made) == 500
    calls = rig.host.calls["deadline"]
    await rig.clock.jump(20)
    assert rig.host.calls["deadline"] == calls, "it is told once"


async def test_all_of_its_care_can_be_seen(rig: Rig) -> None:
    care = {
        "idle_timeout_seconds": 60,
        "on_idle": "delete",
        "on_crash": "restore",
        "checkpoint_every_seconds": 30,
        "checkpoint_every_execs": 5,
        "checkpoint_keep": 7,
    }
    made = await rig.create(**care)
    assert care.items() <= (await rig.show(made)).items()
    snapshot = (await rig.post(made, "snapshots"))["id"]
    child = (await rig.post(made, "fork"))["sandbox"]
    assert care.items() <= child.items(), "a child is cared for as its parent"
    restored = await rig.show(await rig.create(from_snapshot=snapshot))
    usual = {"idle_timeout_seconds": None, "on_idle": "hibernate", "on_crash": "fail", "checkpoint_keep": 3}
    assert usual.items() <= restored.items(), "a restore as its request says"


async def test_another_care_is_another_request_to_one_key(rig: Rig) -> None:
    key = {"idempotency-key": "k"}
    first = await rig.http.post("/v1/sandboxes", json={"idle_timeout_seconds": 5}, headers=key)
    again = await rig.http.post("/v1/sandboxes", json={"idle_timeout_seconds": 5}, headers=key)
    other = await rig.http.post("/v1/sandboxes", json={"idle_timeout_seconds": 6}, headers=key)
    assert (first.json()["id"], other.status_code) == (again.json()["id"], 409)


async def test_a_later_end_that_could_not_be_told_is_told_again_also_while_an_earlier_one_is_told(rig: Rig) -> None:
    made = await rig.create(ttl_seconds=100)
    telling = rig.host.hold("deadline")
    first = asyncio.create_task(set_life(rig.plane, mine(made), 200, None))
    await asyncio.wait_for(telling.reached.wait(), PATIENCE_S)
    second = asyncio.create_task(set_life(rig.plane, mine(made), 5000, None))
    await rig.clock.wait_sleepers(rig.clock.sleepers() + 1)  # it is recorded, and waits for its turn to tell it
    again = rig.host.hold("deadline")
    telling.release()
    await asyncio.wait_for(again.reached.wait(), PATIENCE_S)
    rig.host.fail("deadline", Busy("later"))
    again.release()
    await asyncio.gather(first, second)
    await rig.clock.jump(2)
    assert deadline(rig, made) == 5000


async def test_a_host_that_does_not_take_one_end_takes_the_others_and_the_watcher_goes_on(rig: Rig) -> None:
    stuck, other, dying = sorted([await rig.create(ttl_seconds=100) for _ in range(3)])
    rig.plane.deadlines.doubt([one for one in await rig.store.living() if one.id != dying])
    rig.host.machines[other].deadline = None
    telling = rig.host.hold("deadline")
    await rig.clock.jump(2)
    await asyncio.wait_for(telling.reached.wait(), PATIENCE_S)
    rig.host.die(dying)
    await rig.clock.jump(2)
    await rig.wait_status(dying, "failed")
    await rig.clock.jump(12)
    assert deadline(rig, other) == 100
    assert stuck in rig.host.machines
