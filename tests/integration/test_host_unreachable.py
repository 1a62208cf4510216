"""Machines that live and cannot be taken over yet, on a fake VMM: nobody ends them for that."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from frozen_rig import NOTE
from host_rig import HostRig, guest_file
from passages import Scene, a_scene, assert_tidy, assert_usable, next_agent
from torpor.errors import Failed, Unavailable
from torpor.host.adopt import greeting
from torpor.host.flow.ask import guest_of
from torpor.host.flow.deadline import set_deadline
from torpor.host.flow.delete import delete
from torpor.host.flow.pause import pause
from torpor.host.flow.rollback import rollback
from torpor.host.record import RECORD, read_deadline
from torpor.host.recover import Again, recover
from torpor.kit.procfs import ProcessMark
from torpor.model.ids import SandboxId
from torpor.storage.frozen import MANIFEST
from torpor.vmm.driver import Place, Survivors, Trace
from torpor.vmm.fake import FakeDriver, FakeMachine

# What keeps a machine from being taken over, and what mends that.
Trouble = tuple[Callable[[HostRig, SandboxId], None], Callable[[HostRig, SandboxId], None]]


def mute(rig: HostRig, _: SandboxId) -> None:
    rig.driver.survivors[:] = [each.muted() for each in rig.driver.survivors]


def unmute(rig: HostRig, _: SandboxId) -> None:
    rig.driver.survivors[:] = [dataclasses.replace(each, mute=False) for each in rig.driver.survivors]


def hidden(*names: str) -> Trouble:
    """A file that cannot be read: to read what is in its place is an error of the file system."""

    def hide(rig: HostRig, sandbox: SandboxId) -> None:
        path = rig.layout.sandboxes.joinpath(sandbox, *names)
        path.rename(path.with_name("hidden"))
        path.mkdir()

    def show(rig: HostRig, sandbox: SandboxId) -> None:
        path = rig.layout.sandboxes.joinpath(sandbox, *names)
        path.rmdir()
        path.with_name("hidden").rename(path)

    return hide, show


def of_another_version(text: str) -> Trouble:
    kept: list[bytes] = []

    def write(rig: HostRig, sandbox: SandboxId) -> None:
        path = rig.layout.sandboxes / sandbox / RECORD
        kept.append(path.read_bytes())
        path.write_text(text)

    def mend(rig: HostRig, sandbox: SandboxId) -> None:
        (rig.layout.sandboxes / sandbox / RECORD).write_bytes(kept.pop())

    return write, mend


TROUBLES = [
    pytest.param((mute, unmute), "did not answer", id="it is mute"),
    pytest.param(hidden(RECORD), "record cannot be read", id="its record cannot be read"),
    pytest.param(hidden("base", MANIFEST), "manifest", id="its base cannot be read"),
    pytest.param(of_another_version("{"), "no record of format 1", id="its record makes no sense"),
    pytest.param(of_another_version('{"format": 2}'), "no record of format 1", id="its record is of another version"),
]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with a_scene(tmp_path) as scene:
        yield scene


def machines_of(rig: HostRig) -> list[ProcessMark]:
    return rig.driver.below(rig.layout.sandboxes)


@pytest.mark.parametrize(("trouble", "reason"), TROUBLES)
async def test_a_machine_that_cannot_be_taken_over_is_left_as_it_is_and_taken_over_when_it_can(
    scene: Scene, tmp_path: Path, trouble: Trouble, reason: str
) -> None:
    await set_deadline(scene.rig.host, scene.one, 2e9)
    image = scene.rig.image(tmp_path / "image")
    trouble[0](image, scene.one)
    before = machines_of(image)
    async with next_agent(image) as again:
        live = again.host.live
        assert machines_of(again) == before
        assert (again.layout.sandboxes / scene.one / "base").exists()
        with pytest.raises(Unavailable, match=reason):
            async with guest_of(again.host, scene.one):
                pass
        async with again.client() as client:
            (told,) = (await client.get("/host/v1/incarnations")).json()["items"]
        assert (told["id"], told["alive"], told["status"]) == (scene.one, True, "running")
        assert reason in told["reason"]
        await set_deadline(again.host, scene.one, 3e9)
        trouble[1](again, scene.one)
        take_over = Again(live, again.layout, again.host.snapshots, again.driver)
        async with greeting(live, again.host.connect_guest, take_over, first_s=0.001), asyncio.timeout(10):
            while live.find(scene.one) is None:  # noqa: ASYNC110 - it is taken over in the background
                await asyncio.sleep(0.001)
        assert machines_of(again) == before
        assert read_deadline(again.layout.sandboxes / scene.one) == 3e9
        assert_tidy(again)
        await assert_usable(again, scene.one, "running", b"after")


@pytest.mark.parametrize(("trouble", "reason"), TROUBLES)
async def test_one_that_is_out_of_reach_ends_when_it_is_deleted(
    scene: Scene, tmp_path: Path, trouble: Trouble, reason: str
) -> None:
    image = scene.rig.image(tmp_path / "image")
    trouble[0](image, scene.one)
    await image.recover()
    await delete(image.host, scene.one)
    assert machines_of(image) == []
    assert [each for each in image.left if not each.startswith("snapshot")] == []


@pytest.mark.parametrize(("trouble", "reason"), TROUBLES)
async def test_one_that_is_out_of_reach_can_be_put_back_to_a_checkpoint(
    scene: Scene, tmp_path: Path, trouble: Trouble, reason: str
) -> None:
    image = scene.rig.image(tmp_path / "image")
    trouble[0](image, scene.one)
    before = machines_of(image)
    async with next_agent(image) as again:
        await rollback(again.host, scene.one, scene.checkpoint)
        assert set(machines_of(again)).isdisjoint(before)
        assert await guest_file(again, scene.one, NOTE) == b"before"
        assert_tidy(again)


async def test_one_that_ends_while_it_is_out_of_reach_is_lost(scene: Scene, tmp_path: Path) -> None:
    image = scene.rig.image(tmp_path / "image")
    mute(image, scene.one)
    async with next_agent(image) as again:
        (one,) = again.host.live.out_of_reach()
        take_over = Again(again.host.live, again.layout, again.host.snapshots, again.driver)
        assert not await take_over(one)
        again.driver.survivors.clear()
        assert await take_over(one)
        assert again.state_of(scene.one) == "lost"
        assert_tidy(again)


async def test_one_that_was_paused_is_told_to_be(scene: Scene, tmp_path: Path) -> None:
    await pause(scene.rig.host, scene.one)
    image = scene.rig.image(tmp_path / "image")
    mute(image, scene.one)
    async with next_agent(image) as again, again.client() as client:
        (told,) = (await client.get("/host/v1/incarnations")).json()["items"]
        assert told["status"] == "paused"


class Changed:
    """Survivors as the driver has them, but for what a test makes of them."""

    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver

    def below(self, folder: Path) -> list[ProcessMark]:
        return self.driver.below(folder)

    async def adopt(self, place: Place, trace: Trace, *, within_s: float) -> FakeMachine:
        return await self.driver.adopt(place, trace, within_s=within_s)

    async def end(self, process: ProcessMark) -> None:
        await self.driver.end(process)


class Undead(Changed):
    """Machines that do not end, as one whose disk has gone."""

    async def end(self, process: ProcessMark) -> None:
        raise Failed(f"the process {process.pid} does not end")


class Slow(Changed):
    """Machines that have not answered yet."""

    def __init__(self, driver: FakeDriver) -> None:
        super().__init__(driver)
        self.asked = asyncio.Event()

    async def adopt(self, place: Place, trace: Trace, *, within_s: float) -> FakeMachine:
        self.asked.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError


async def test_a_machine_of_nobody_s_that_does_not_end_keeps_its_folder_and_no_server_from_starting(
    scene: Scene, tmp_path: Path
) -> None:
    image = scene.rig.image(tmp_path / "image")
    (image.layout.sandboxes / scene.one / RECORD).unlink()
    before = machines_of(image)
    survivors: Survivors = Undead(image.driver)
    live = await recover(image.layout, image.host.snapshots, survivors)
    assert live.all() == []
    assert machines_of(image) == before
    assert (image.layout.sandboxes / scene.one).exists()
    await image.recover()
    assert [each for each in image.left if not each.startswith("snapshot")] == []


async def test_a_sandbox_whose_machine_does_not_end_is_not_forgotten(scene: Scene, tmp_path: Path) -> None:
    image = scene.rig.image(tmp_path / "image")
    mute(image, scene.one)
    async with next_agent(image) as again:
        (one,) = again.host.live.out_of_reach()
        one.survivors = Undead(again.driver)
        with pytest.raises(Failed, match="does not end"):
            await delete(again.host, scene.one)
        assert again.host.live.whatever(scene.one) is one
        assert (again.layout.sandboxes / scene.one).exists()
        one.survivors = again.driver


async def test_a_start_that_is_cut_short_ends_no_machine(scene: Scene, tmp_path: Path) -> None:
    image = scene.rig.image(tmp_path / "image")
    before, slow = machines_of(image), Slow(image.driver)
    starting = asyncio.create_task(recover(image.layout, image.host.snapshots, slow))
    await slow.asked.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert machines_of(image) == before
    async with next_agent(image) as again:
        assert again.state_of(scene.one) == "running"
