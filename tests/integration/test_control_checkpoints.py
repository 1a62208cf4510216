"""Checkpoints that come about by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from control_rig import PATIENCE_S, Rig, control_rig
from torpor.control.checkpoints import take_checkpoints
from torpor.errors import FreezeFailed, OutOfSpace


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made, made.working(take_checkpoints(made.plane)):
        yield made


async def kept(rig: Rig, made: str, kind: str = "automatic") -> list[Any]:
    """Return the snapshots of one kind, the newest first."""
    items = (await rig.http.get("/v1/snapshots", params={"sandbox_id": made})).json()["items"]
    return [item for item in items if item["kind"] == kind]


async def wait_kept(rig: Rig, made: str, count: int) -> list[Any]:
    """Return the automatic checkpoints once there are so many, and nothing is under way any more."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            coming = rig.plane.bells.news.coming
            found = await kept(rig, made)
            if len(found) == count and await rig.status(made) not in ("snapshotting", "creating"):
                return found
            await coming.wait()


async def run(rig: Rig, made: str, cmd: str = "true") -> None:
    assert (await rig.http.post(f"/v1/sandboxes/{made}/exec", json={"cmd": cmd})).status_code == 200


async def test_a_checkpoint_is_taken_every_so_many_seconds_and_named_as_automatic(rig: Rig) -> None:
    made = await rig.create(checkpoint_every_seconds=60, checkpoint_keep=10)
    await rig.clock.jump(59)
    assert await kept(rig, made) == []
    await rig.clock.jump(1)
    (first,) = await wait_kept(rig, made, 1)
    assert (first["kind"], first["name"]) == ("automatic", "automatic")
    await rig.clock.jump(120)
    await wait_kept(rig, made, 3)
    assert (await rig.show(made))["last_snapshot_id"] == (await kept(rig, made))[0]["id"]
    checkpoints = [data for _, data in await rig.told(made, "checkpoint")]
    assert {data["kind"] for data in checkpoints} == {"automatic"}


async def test_only_the_newest_few_are_kept_and_none_that_was_asked_for_is_touched(rig: Rig) -> None:
    made = await rig.create(checkpoint_every_seconds=10, checkpoint_keep=2)
    asked = await rig.post(made, "snapshots", name="mine")
    seen = []
    for _ in range(5):
        await rig.clock.jump(10)
        await rig.clock.jump(0.001)
        seen.append((await kept(rig, made))[0]["id"])
    assert [item["id"] for item in await wait_kept(rig, made, 2)] == [seen[4], seen[3]]
    assert [item["id"] for item in await kept(rig, made, "checkpoint")] == [asked["id"]]
    assert set(rig.host.snapshots) == {seen[4], seen[3], asked["id"]}


async def test_the_time_counts_from_the_last_snapshot_of_any_kind_but_a_fork(rig: Rig) -> None:
    made = await rig.create(checkpoint_every_seconds=60)
    await rig.clock.jump(50)
    await rig.post(made, "snapshots")
    await rig.clock.jump(50)
    await rig.post(made, "fork")
    await rig.clock.jump(9)
    assert await kept(rig, made) == []
    await rig.clock.jump(1)
    await wait_kept(rig, made, 1)


@pytest.mark.parametrize(("rest", "go_on"), [("pause", "resume"), ("hibernate", "wake")])
async def test_only_running_counts(rig: Rig, rest: str, go_on: str) -> None:
    made = await rig.create(checkpoint_every_seconds=60, persistent=True)
    await rig.clock.jump(40)
    await rig.post(made, rest)
    await rig.clock.jump(10_000)
    assert await kept(rig, made) == []
    await rig.post(made, go_on)
    # A hibernation is a snapshot, from which the time counts anew; a pause is none.
    left = 20 if rest == "pause" else 60
    await rig.clock.jump(left - 1)
    assert await kept(rig, made) == []
    await rig.clock.jump(1)
    await wait_kept(rig, made, 1)


async def test_a_checkpoint_is_taken_after_every_so_many_commands(rig: Rig) -> None:
    made = await rig.create(checkpoint_every_execs=3)
    for count in (1, 2):
        for cmd in ("true", "false", "echo a"):
            assert len(await kept(rig, made)) == count - 1
            await run(rig, made, cmd)
        await wait_kept(rig, made, count)
    await rig.clock.jump(3000)
    assert len(await kept(rig, made)) == 2


async def test_the_answer_of_a_command_does_not_wait_for_the_checkpoint(rig: Rig) -> None:
    made = await rig.create(checkpoint_every_execs=1)
    hold = rig.host.hold("snapshot")
    await run(rig, made)
    await asyncio.wait_for(hold.reached.wait(), PATIENCE_S)
    assert await rig.status(made) == "snapshotting"
    await run(rig, made, "echo meanwhile")
    hold.release()
    # The command that came meanwhile has its own.
    await wait_kept(rig, made, 2)


async def test_none_is_begun_while_a_passage_is_under_way(rig: Rig) -> None:
    made = await rig.create(checkpoint_every_seconds=60)
    hold = rig.host.hold("hibernate")
    hibernating = asyncio.create_task(rig.post(made, "hibernate"))
    await hold.reached.wait()
    await rig.clock.jump(100)
    hold.release()
    await hibernating
    await rig.clock.jump(100)
    assert (await kept(rig, made), rig.host.calls["snapshot"]) == ([], 0)


@pytest.mark.parametrize("error", [OutOfSpace("the disk is full"), FreezeFailed("no answer")])
async def test_one_that_failed_harms_nothing_is_noted_and_is_tried_again(rig: Rig, error: Exception) -> None:
    made = await rig.create(checkpoint_every_seconds=60, checkpoint_every_execs=1)
    rig.host.fail("snapshot", error)  # type: ignore[arg-type]
    await run(rig, made)
    await rig.clock.jump(1)
    assert await rig.told(made, "checkpoint_failed") == [("checkpoint_failed", {"error": str(error)})]
    await run(rig, made, "echo well")
    await wait_kept(rig, made, 1)


async def test_a_sandbox_that_did_not_wish_for_it_has_none(rig: Rig) -> None:
    made = await rig.create()
    await run(rig, made)
    await rig.clock.jump(3000)
    assert await kept(rig, made) == []


async def test_what_a_former_server_left_is_due_when_its_time_is_over(rig: Rig) -> None:
    """A server that starts anew knows of the last checkpoint by its record."""
    async with control_rig(rig.store) as second:
        second.host.machines, second.host.snapshots = rig.host.machines, rig.host.snapshots
        made = await second.create(checkpoint_every_seconds=60)
        await second.clock.jump(45)
        async with second.working(take_checkpoints(second.plane)):
            await second.clock.jump(14)
            assert await kept(second, made) == []
            await second.clock.jump(1)
            await wait_kept(second, made, 1)
