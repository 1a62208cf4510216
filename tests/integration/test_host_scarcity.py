"""While the host's disk is nearly full machines stand still, and go on when there is room again. On a fake VMM."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from host_rig import BASE, HostRig, new_rig
from torpor.errors import Unavailable
from torpor.host.flow.create import Source, create
from torpor.host.flow.pause import pause, resume
from torpor.host.live import Incarnation
from torpor.host.scarcity import Scarcity, left_for_guests
from torpor.model.ids import new_sandbox_id
from torpor.storage.layout import Layout
from torpor.storage.room import MIB, free_and_total

RESERVE = 512 * MIB


class Disk:
    """How much is left on a disk that a test fills."""

    left = 2 * RESERVE

    def __call__(self) -> int:
        return self.left


async def made(rig: HostRig) -> Incarnation:
    return await create(rig.host, new_sandbox_id(), Source(template=BASE))


def running(rig: HostRig) -> list[bool]:
    return [not machine.paused for machine in rig.driver.running]


async def test_machines_stop_at_half_of_the_reserve_and_go_on_at_all_of_it(tmp_path: Path) -> None:
    rig, disk = new_rig(tmp_path), Disk()
    await rig.bake()
    scarcity = Scarcity(rig.host.live, RESERVE, disk)
    async with rig.client() as client:
        first, second = await made(rig), await made(rig)
        for left, runs in ((RESERVE // 2, True), (RESERVE // 2 - 1, False), (RESERVE - 1, False), (RESERVE, True)):
            disk.left = left
            await scarcity.look()
            assert running(rig) == [runs, runs], left
            told = (await client.get("/host/v1/capacity")).json()["stopped"]
            assert told == ([] if runs else [first.id, second.id])


async def test_who_asks_something_of_one_that_was_stopped_is_told_why_at_once(tmp_path: Path) -> None:
    rig, disk = new_rig(tmp_path), Disk()
    await rig.bake()
    scarcity = Scarcity(rig.host.live, RESERVE, disk)
    async with rig.client() as client:
        one = await made(rig)
        disk.left = 0
        await scarcity.look()
        with pytest.raises(Unavailable, match="disk is nearly full"):
            await one.reach(rig.host.connect_guest)
        answer = await client.get(f"/host/v1/incarnations/{one.id}/jobs")
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        disk.left = RESERVE
        await scarcity.look()
        assert (await client.get(f"/host/v1/incarnations/{one.id}/jobs")).status_code == 200


async def test_one_that_somebody_paused_stays_so_and_one_that_is_resumed_is_stopped_again(tmp_path: Path) -> None:
    rig, disk = new_rig(tmp_path), Disk()
    await rig.bake()
    scarcity = Scarcity(rig.host.live, RESERVE, disk)
    async with rig.client():
        one = await made(rig)
        await pause(rig.host, one.id)
        disk.left = 0
        await scarcity.look()
        await resume(rig.host, one.id)
        assert running(rig) == [True]
        await scarcity.look()
        assert running(rig) == [False]
        disk.left = RESERVE
        await scarcity.look()
        assert running(rig) == [True]
        await pause(rig.host, one.id)
        disk.left = 0
        await scarcity.look()
        disk.left = RESERVE
        await scarcity.look()
        assert running(rig) == [False]


async def test_one_that_a_verb_is_at_work_on_is_left_to_the_next_look(tmp_path: Path) -> None:
    rig, disk = new_rig(tmp_path), Disk()
    await rig.bake()
    scarcity = Scarcity(rig.host.live, RESERVE, disk)
    async with rig.client():
        one = await made(rig)
        disk.left = 0
        async with rig.host.live.lock(one.id):
            await asyncio.wait_for(scarcity.look(), 10)
            assert running(rig) == [True]
        await scarcity.look()
        assert running(rig) == [False]


def test_above_a_volume_what_waits_to_be_written_has_taken_its_room_already(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nDirty:   1048576 kB\nWriteback:  1024 kB\nWritebackTmp: 4 kB\n")
    free, _ = free_and_total(tmp_path)
    assert abs(left_for_guests(Layout(tmp_path), meminfo) - free) < 1024 * MIB
    assert abs(left_for_guests(Layout(tmp_path, 1), meminfo) - (free - 1025 * MIB)) < 512 * MIB
