"""The end of a sandbox's life, on a clock that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from control_rig import PATIENCE_S, Rig, control_rig
from torpor.control.reaper import reap
from torpor.control.reconcile import reconcile
from torpor.errors import Busy


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


@asynccontextmanager
async def reaping(rig: Rig) -> AsyncIterator[None]:
    task = asyncio.create_task(reap(rig.plane))
    await rig.clock.wait_sleepers()
    yield
    task.cancel()
    await asyncio.wait([task])


async def test_a_sandbox_ends_at_the_end_of_its_ttl_and_not_before(rig: Rig) -> None:
    async with reaping(rig):
        made = await rig.create(ttl_seconds=10)
        await rig.clock.jump(9.9)
        assert await rig.status(made) == "running"
        await rig.clock.jump(0.1)
        assert await rig.status(made) == "deleted"
        assert made not in rig.host.machines


async def test_each_sandbox_ends_at_its_own_time(rig: Rig) -> None:
    async with reaping(rig):
        made = [await rig.create(ttl_seconds=seconds) for seconds in (30, 10, 20)]
        seen = []
        for _ in range(3):
            await rig.clock.jump(10)
            seen.append([await rig.status(one) for one in made])
    assert seen == [
        ["running", "deleted", "running"],
        ["running", "deleted", "deleted"],
        ["deleted", "deleted", "deleted"],
    ]


async def test_a_persistent_sandbox_does_not_end(rig: Rig) -> None:
    async with reaping(rig):
        made = await rig.create(persistent=True)
        await rig.clock.jump(100 * 24 * 3600)
        assert await rig.status(made) == "running"


async def test_a_failed_sandbox_ends_too(rig: Rig) -> None:
    async with reaping(rig):
        made = await rig.create(ttl_seconds=10)
        rig.host.die(made)
        await rig.http.post(f"/v1/sandboxes/{made}/exec", json={"cmd": "true"})
        assert await rig.status(made) == "failed"
        await rig.clock.jump(10)
        assert await rig.status(made) == "deleted"


@pytest.mark.parametrize("verb", ["pause", "hibernate"])
async def test_a_sandbox_that_stands_still_or_sleeps_ends_too(rig: Rig, verb: str) -> None:
    async with reaping(rig):
        made = await rig.create(ttl_seconds=10)
        await rig.post(made, verb)
        await rig.clock.jump(9.9)
        assert await rig.status(made) in ("paused", "hibernated")
        await rig.clock.jump(0.1)
        assert await rig.status(made) == "deleted"
        assert (rig.host.machines, rig.host.snapshots) == ({}, {})


@pytest.mark.parametrize(("ttl", "left"), [(100, 60), (5, 5)])
async def test_a_changed_ttl_counts_from_the_change(rig: Rig, ttl: int, left: int) -> None:
    async with reaping(rig):
        made = await rig.create(ttl_seconds=60)
        await rig.clock.jump(40)
        await rig.http.patch(f"/v1/sandboxes/{made}/lifecycle", json={"ttl_seconds": ttl})
        await rig.clock.jump(ttl - 1)
        assert await rig.status(made) == "running"
        await rig.clock.jump(1)
        assert await rig.status(made) == "deleted"


async def test_what_ended_while_nobody_looked_is_deleted_at_the_start(rig: Rig) -> None:
    made = [await rig.create(ttl_seconds=10) for _ in range(20)]
    await rig.clock.jump(3600)
    async with reaping(rig):
        for one in made:
            await rig.wait_status(one, "deleted")
        assert not rig.host.machines


async def test_a_deletion_that_failed_is_tried_again(rig: Rig) -> None:
    async with reaping(rig):
        made = await rig.create(ttl_seconds=10)
        rig.host.fail("close", Busy("not now"), times=2)
        await rig.clock.jump(10)
        assert await rig.status(made) == "failed"
        await rig.clock.jump(30)
        assert await rig.status(made) == "deleted"


async def test_what_cannot_be_ended_keeps_no_other_from_its_end(rig: Rig) -> None:
    bad = [await rig.create(ttl_seconds=10) for _ in range(20)]
    good = await rig.create(ttl_seconds=11)
    rig.host.fail("close", Busy("not now"), times=20)
    await rig.clock.jump(11)
    async with reaping(rig):
        await rig.wait_status(good, "deleted")
        assert {await rig.status(one) for one in bad} <= {"failed", "deleting"}
        await rig.clock.jump(30)
        for one in bad:
            await rig.wait_status(one, "deleted")


async def test_an_end_that_hangs_is_given_up_for_now_and_keeps_no_other_from_its_own(rig: Rig) -> None:
    async with reaping(rig):
        stuck = [await rig.create(ttl_seconds=10) for _ in range(8)]
        other = await rig.create(ttl_seconds=20)
        holds = [rig.host.hold("close") for _ in stuck]
        await rig.clock.jump(10)
        for hold in holds:
            await asyncio.wait_for(hold.reached.wait(), PATIENCE_S)
        await rig.clock.jump(10 + 60)
        await rig.wait_status(other, "deleted")
        assert await reconcile(rig.plane) == len(stuck), "what became of them is for the reconciler to find out"
        assert {await rig.status(one) for one in stuck} == {"deleted"}
