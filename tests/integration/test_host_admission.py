"""What a host has no room for is refused with figures, and nothing of it is made. On a fake VMM."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest

from host_rig import BASE, HostRig
from torpor.errors import NoCapacity, RestoreFailed
from torpor.host.admission import Admission
from torpor.host.flow.create import Source, create
from torpor.host.flow.delete import delete
from torpor.host.flow.freeze import FreezeOrder
from torpor.host.flow.hibernate import hibernate
from torpor.host.flow.rollback import rollback
from torpor.host.flow.snapshot import snapshot
from torpor.host.flow.wake import wake
from torpor.host.live import Live
from torpor.model.capacity import MIB, NOTHING, Limits, need_of
from torpor.model.ids import SandboxId, new_sandbox_id, new_snapshot_id
from torpor.storage.layout import Layout

ONE = need_of(256, 4)


async def rig_for(folder: Path, machines: int, *, keep_s: float = 0) -> HostRig:
    """Return a host that has memory for so many machines, and the template `base`."""
    limits = Limits(memory_bytes=machines * ONE.memory_bytes)
    rig = HostRig(Layout(folder / "home"), keep_s=keep_s, limits=limits)
    await rig.bake()
    return rig


async def made(rig: HostRig) -> SandboxId:
    sandbox = new_sandbox_id()
    await create(rig.host, sandbox, Source(template=BASE))
    return sandbox


async def refused(work: Awaitable[object]) -> NoCapacity:
    with pytest.raises(NoCapacity) as caught:
        await work
    return caught.value


async def end(rig: HostRig) -> None:
    for each in rig.host.live.everything():
        await delete(rig.host, each.id)
    await rig.host.spares.aclose()
    assert rig.host.admission.promised() == NOTHING
    assert [one for one in rig.left if not one.startswith("snapshot ")] == []


async def test_a_create_beyond_the_limit_is_refused_with_figures_and_makes_nothing(tmp_path: Path) -> None:
    rig = await rig_for(tmp_path, 2)
    first, _ = await made(rig), await made(rig)
    before = rig.left
    error = await refused(create(rig.host, new_sandbox_id(), Source(template=BASE)))
    assert f"are promised to 2 machines, and {ONE.memory_bytes // MIB} MiB more are wanted" in error.message
    assert (error.resource, error.used, error.limit) == ("memory", 2 * ONE.memory_bytes, 2 * ONE.memory_bytes)
    assert error.hint
    assert rig.left == before
    await delete(rig.host, first)
    await made(rig)
    await end(rig)


async def test_of_many_who_want_the_last_places_at_once_exactly_so_many_get_one(tmp_path: Path) -> None:
    rig = await rig_for(tmp_path, 3)
    ends = await asyncio.gather(*(made(rig) for _ in range(12)), return_exceptions=True)
    assert sum(isinstance(one, str) for one in ends) == 3
    assert sum(isinstance(one, NoCapacity) for one in ends) == 9
    assert len(rig.driver.running) == 3
    await end(rig)


async def test_a_create_that_fails_gives_its_room_back(tmp_path: Path) -> None:
    rig = await rig_for(tmp_path, 1)
    rig.driver.failures.append(RestoreFailed("nothing can be loaded now"))
    with pytest.raises(RestoreFailed):
        await made(rig)
    await made(rig)
    await end(rig)


async def test_one_that_sleeps_takes_no_room_and_wakes_only_where_there_is_some(tmp_path: Path) -> None:
    rig = await rig_for(tmp_path, 1)
    sleeper = await made(rig)
    await hibernate(rig.host, sleeper, FreezeOrder(new_snapshot_id()))
    other = await made(rig)
    before = rig.left
    assert "are promised to one machine" in (await refused(wake(rig.host, sleeper))).message
    assert rig.left == before
    await delete(rig.host, other)
    assert (await wake(rig.host, sleeper)).machine.alive
    await end(rig)


async def test_a_restore_and_a_fork_want_room_as_a_create_does(tmp_path: Path) -> None:
    rig = await rig_for(tmp_path, 2)
    first, taken = await made(rig), new_snapshot_id()
    await snapshot(rig.host, first, FreezeOrder(taken))
    await hibernate(rig.host, first, FreezeOrder(new_snapshot_id()))
    await made(rig), await made(rig)
    await refused(create(rig.host, new_sandbox_id(), Source(snapshot=taken)))
    await refused(create(rig.host, new_sandbox_id(), Source(sleeper=first)))
    await end(rig)


async def test_a_rollback_wants_room_beside_what_it_replaces_and_leaves_that_as_it_is(tmp_path: Path) -> None:
    rig = await rig_for(tmp_path, 2)
    first, taken = await made(rig), new_snapshot_id()
    await snapshot(rig.host, first, FreezeOrder(taken))
    other = await made(rig)
    before, machine = rig.left, rig.host.live.get(first).machine
    await refused(rollback(rig.host, first, taken))
    assert rig.left == before
    assert rig.host.live.get(first).machine is machine
    await delete(rig.host, other)
    assert (await rollback(rig.host, first, taken)).machine is not machine
    assert rig.host.admission.promised() == ONE
    await end(rig)


async def test_a_machine_that_has_died_takes_no_room(tmp_path: Path) -> None:
    rig = await rig_for(tmp_path, 1)
    await made(rig)
    rig.driver.machines[-1].die("it was killed")
    await made(rig)
    await end(rig)


async def test_a_spare_is_ended_when_a_sandbox_wants_its_room(tmp_path: Path) -> None:
    rig = await rig_for(tmp_path, 2, keep_s=60)
    first, taken = await made(rig), new_snapshot_id()
    await rig.host.spares.wait_settled()
    assert len(rig.driver.running) == 2
    await snapshot(rig.host, first, FreezeOrder(taken))
    await create(rig.host, new_sandbox_id(), Source(snapshot=taken))
    assert sorted(machine.place.name for machine in rig.driver.running) == sorted(
        each.id for each in rig.host.live.all()
    )
    await end(rig)


async def test_the_last_place_may_be_the_spares_which_the_create_takes(tmp_path: Path) -> None:
    rig = await rig_for(tmp_path, 2, keep_s=60)
    await made(rig)
    await rig.host.spares.wait_settled()
    rig.driver.failures.append(RestoreFailed("nothing can be loaded now"))  # so it can only be the spare
    await made(rig)
    await rig.host.spares.wait_settled()
    assert len(rig.driver.running) == 2
    assert rig.host.spares.needs() == NOTHING  # there was no room for another
    rig.driver.failures.clear()
    await end(rig)


async def test_what_was_taken_over_after_a_restart_counts(tmp_path: Path) -> None:
    rig = await rig_for(tmp_path, 2)
    await made(rig), await made(rig)
    again = await rig.killed()
    assert again.host.admission.promised() == ONE + ONE
    await refused(create(again.host, new_sandbox_id(), Source(template=BASE)))
    await end(again)


async def test_room_for_several_is_held_for_all_or_none_until_they_begin_or_are_given_up(tmp_path: Path) -> None:
    rig = await rig_for(tmp_path, 3)
    ids = [str(new_sandbox_id()) for _ in range(4)]
    size = {"memory_mb": 256, "disk_gb": 4, "for_s": 60}
    async with rig.client() as client:
        many = await client.post("/host/v1/reservations", json={"ids": ids, **size})
        assert (many.status_code, many.json()["code"]) == (503, "no_capacity")
        assert "4 more machines" in many.json()["error"]
        assert (await client.post("/host/v1/reservations", json={"ids": ids[:3], **size})).status_code == 204
        stranger = await client.post("/host/v1/incarnations", json={"id": new_sandbox_id(), "template": "base"})
        assert stranger.status_code == 503
        assert (await client.post("/host/v1/incarnations", json={"id": ids[0], "template": "base"})).is_success
        assert (await client.delete(f"/host/v1/incarnations/{ids[1]}")).is_success
        assert rig.host.admission.promised() == ONE + ONE
        told = (await client.get("/host/v1/capacity")).json()
        assert told["memory"] == {"limit": 3 * ONE.memory_bytes, "used": 2 * ONE.memory_bytes}
        assert told["machines"] == {"limit": None, "used": 2}
        assert told["rooms"][0]["reserve_bytes"] > 0
        assert (await client.delete(f"/host/v1/incarnations/{ids[2]}")).is_success
    await end(rig)


async def test_room_that_nobody_came_for_is_free_again_after_its_time() -> None:
    now = 0.0
    admission = Admission(Live(), Limits(machines=1), lambda: now)
    admission.reserve([new_sandbox_id()], ONE, for_s=10)
    assert not admission.fits(ONE)
    now = 10.0
    assert admission.fits(ONE)


async def test_a_reservation_of_nonsense_is_refused(tmp_path: Path) -> None:
    rig = await rig_for(tmp_path, 1)
    async with rig.client() as client:
        for order, status in (
            ({"ids": ["../x"], "memory_mb": 1, "disk_gb": 1, "for_s": 1}, 404),
            ({"ids": [], "memory_mb": 0, "disk_gb": 1, "for_s": 1}, 400),
            ({"ids": [], "memory_mb": 1, "disk_gb": 1, "for_s": 1e9}, 400),
        ):
            answer = await client.post("/host/v1/reservations", json=order)
            assert (answer.status_code, isinstance(answer.json()["error"], str)) == (status, True)
