"""Sandboxes whose machines have outlived a host agent, on a fake VMM: the next one has them as the first had."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from frozen_rig import NOTE, order
from host_rig import BASE, HostRig, put_guest_file
from passages import PASSAGES, Scene, Step, a_scene, assert_tidy, assert_usable, cut_at, next_agent
from torpor.guest.client import Guest
from torpor.guest.client import connect as guest_behind
from torpor.host.adopt import greeting
from torpor.host.flow.create import Source, create
from torpor.host.flow.deadline import set_deadline
from torpor.host.flow.delete import delete
from torpor.host.flow.hibernate import hibernate
from torpor.host.flow.pause import pause
from torpor.host.metering import measure
from torpor.host.record import read_deadline
from torpor.kit import faultpoints
from torpor.model.ids import new_sandbox_id
from torpor.model.snapshot import Kind
from torpor.storage.frozen import DISK
from torpor.testing.fake_guest import FakeGuest


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with a_scene(tmp_path) as scene:
        yield scene


async def test_what_was_taken_over_is_taken_over_again_and_again(scene: Scene) -> None:
    rig = scene.rig
    await pause(rig.host, scene.one)
    await scene.to_template()
    await put_guest_file(rig, scene.child, NOTE, b"child's")
    pids = {each.id: each.machine.pid for each in rig.host.live.all()}
    for _ in range(3):
        rig = await rig.killed()
        assert (rig.state_of(scene.one), rig.state_of(scene.child)) == ("paused", "running")
        assert {each.id: each.machine.pid for each in rig.host.live.all()} == pids
        assert all(each.adopted for each in rig.host.live.all())
        assert_tidy(rig)
    await assert_usable(rig, scene.child, "running", b"child's")
    await assert_usable(rig, scene.one, "paused", b"after")
    for sandbox in (scene.one, scene.child):
        await delete(rig.host, sandbox)


async def test_guests_that_stood_still_when_their_host_agent_died_go_on_without_being_asked(
    scene: Scene, tmp_path: Path
) -> None:
    passage = next(each for each in PASSAGES if each.name == "hibernate")
    image = await cut_at(scene, passage, "freeze.marked", tmp_path / "image", machines_die=False)
    async with next_agent(image) as again:
        (machine,) = again.driver.running
        assert isinstance(machine.guest, FakeGuest)
        assert machine.guest.frozen
        incarnation = again.host.live.get(scene.one)
        async with greeting(again.host.live, again.host.connect_guest):
            await incarnation.reach(again.host.connect_guest)
        assert not machine.guest.frozen


async def test_a_guest_that_does_not_answer_at_first_is_told_to_go_on_later(scene: Scene) -> None:
    (before,) = scene.rig.driver.running
    assert isinstance(before.guest, FakeGuest)
    before.guest.freeze()
    rig = await scene.rig.killed()
    (machine,) = rig.driver.running
    assert isinstance(machine.guest, FakeGuest)
    machine.guest.silent = True
    tries = 0

    async def connect(sock: socket.socket) -> Guest:
        nonlocal tries
        tries += 1
        assert isinstance(machine.guest, FakeGuest)
        machine.guest.silent = tries < 3
        return await guest_behind(sock, timeout_s=0.05)

    async with greeting(rig.host.live, connect, first_s=0.001), asyncio.timeout(10):
        await machine.guest.wait_thawed()
    assert tries == 3
    await delete(rig.host, scene.one)


async def test_a_guest_that_was_taken_over_is_quiesced_before_it_is_frozen(scene: Scene) -> None:
    again = await scene.rig.killed()
    (machine,) = again.driver.running
    assert isinstance(machine.guest, FakeGuest)
    machine.guest.hooks = 1
    await hibernate(again.host, scene.one, order(Kind.HIBERNATION))
    assert machine.guest.hooks_run == ["freeze"]
    await delete(again.host, scene.one)


async def test_a_deadline_lasts_through_sleep_and_a_rollback_and_a_new_host_agent(scene: Scene) -> None:
    rig, folder = scene.rig, scene.rig.layout.sandboxes / scene.one
    await set_deadline(rig.host, scene.one, 2e9)
    await scene.to_sleep()
    assert read_deadline(folder) == 2e9
    await scene.to_wake()
    await scene.to_checkpoint()
    assert read_deadline(folder) == 2e9
    again = await rig.killed()
    assert read_deadline(folder) == 2e9
    await set_deadline(again.host, scene.one, None)
    assert read_deadline(folder) is None
    await delete(again.host, scene.one)


@pytest.mark.parametrize("verb", [Scene.to_wake, Scene.to_checkpoint], ids=["wake", "rollback"])
async def test_a_deadline_that_is_told_while_hooks_run_is_noted_at_once_and_holds(scene: Scene, verb: Step) -> None:
    rig = scene.rig
    if verb is Scene.to_wake:
        await scene.to_sleep()
    await set_deadline(rig.host, scene.one, 2e9)
    rig.guests.append(FakeGuest(hooks=1, silent_hooks=True))
    thawed = asyncio.Event()
    faultpoints.watch(lambda point: thawed.set() if point == "restore.thawed" else None)
    under_way = asyncio.create_task(verb(scene))
    await thawed.wait()
    async with asyncio.timeout(5):
        await set_deadline(rig.host, scene.one, 3e9)
    assert read_deadline(rig.layout.sandboxes / scene.one) == 3e9
    rig.driver.running[-1].die("its hooks had taken for ever")
    await under_way
    assert read_deadline(rig.layout.sandboxes / scene.one) == 3e9


async def test_a_sandbox_whose_disk_cannot_be_looked_at_is_measured_listed_and_deleted_all_the_same(
    scene: Scene,
) -> None:
    rig, disk = scene.rig, scene.rig.layout.sandboxes / scene.one / DISK
    before = await measure(rig.host.live.get(scene.one))
    disk.unlink()
    disk.symlink_to(disk)  # asking how large it is fails
    assert await measure(rig.host.live.get(scene.one)) == before
    async with rig.client() as client:
        (listed,) = (await client.get("/host/v1/incarnations")).json()["items"]
        assert (listed["id"], listed["alive"]) == (scene.one, True)
        (machine,) = rig.driver.running
        assert (await client.delete(f"/host/v1/incarnations/{scene.one}")).status_code == 200
    assert not machine.alive


async def test_what_a_sandbox_uses_is_counted_on_over_sleep_and_rollback_and_a_new_host_agent(scene: Scene) -> None:
    rig = scene.rig
    readings = [rig.host.live.usage_of(scene.one)]

    def use(of: HostRig) -> None:
        (machine,) = of.driver.running
        machine.cpu, machine.held = machine.cpu + 10, 1 << 20
        readings.append(of.host.live.usage_of(scene.one))

    use(rig)
    for step in (scene.to_sleep, scene.to_wake, scene.to_checkpoint):
        await step()
        readings.append(rig.host.live.usage_of(scene.one))
        if step != scene.to_sleep:
            use(rig)
    again = await rig.killed()
    readings.append(again.host.live.usage_of(scene.one))
    use(again)
    await hibernate(again.host, scene.one, order(Kind.HIBERNATION))
    last = await again.killed()
    readings.append(last.host.live.usage_of(scene.one))
    spent = [each.cpu_seconds for each in readings if each is not None]
    held = [each.resident_byte_seconds for each in readings if each is not None]
    assert len(spent) == len(readings)
    assert spent == [0, 10, 10, 10, 20, 20, 30, 30, 40, 40]
    assert held == sorted(held)
    assert (readings[-1].resident_bytes if readings[-1] else None) == 0
    await delete(last.host, scene.one)


async def test_twenty_machines_and_a_hundred_sleepers_are_taken_over_quickly(scene: Scene) -> None:
    rig, one = scene.rig, scene.one
    await hibernate(rig.host, one, order(Kind.HIBERNATION))
    sleeper = rig.layout.sandboxes / one
    awake, asleep = [new_sandbox_id() for _ in range(20)], [new_sandbox_id() for _ in range(100)]
    for sandbox in awake:
        await create(rig.host, sandbox, Source(template=BASE))
    for sandbox in asleep:
        (rig.layout.sandboxes / sandbox).mkdir()
        (rig.layout.sandboxes / sandbox / "asleep").write_bytes((sleeper / "asleep").read_bytes())
    began = time.monotonic()
    again = await rig.killed()
    took = time.monotonic() - began
    assert [again.state_of(sandbox) for sandbox in awake] == ["running"] * 20
    assert [again.state_of(sandbox) for sandbox in asleep] == ["asleep"] * 100
    assert took < 3
    for sandbox in (*awake, *asleep, one):
        await delete(again.host, sandbox)
    assert [each for each in again.left if not each.startswith("snapshot")] == []
