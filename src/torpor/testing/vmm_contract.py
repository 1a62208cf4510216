"""The suite that every VMM driver passes.

A driver's test module subclasses `VmmContract` and gives it a fixture `rig`: a driver, hardware that it can boot
whose guest runs Torpor's agent, and a folder to work in.
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from torpor.errors import FreezeFailed, RestoreFailed, SandboxLost
from torpor.guest.client import connect
from torpor.kit.files import clone
from torpor.vmm.driver import Driver, Hardware, Machine, Place, Saved

PATIENCE_S = 60.0


@dataclass
class Rig:
    """What the suite works with: `hardware` without an overlay on its first disk, and `overlay`, an empty one for it.

    `real`: a machine's pid is that of a process, which the suite may kill.
    """

    driver: Driver
    hardware: Hardware
    overlay: Path
    folder: Path
    real: bool
    saved: Saved | None = None
    saved_overlay: Path | None = None

    def place(self, name: str) -> Place:
        """Return a new place."""
        folder = self.folder / name
        folder.mkdir()
        return Place(name, folder)

    def with_overlay(self, place: Place, source: Path | None = None) -> Hardware:
        """Return the hardware with an overlay of the place's own, a copy of `source`."""
        mine = place.folder / "disk.qcow2"
        clone(source or self.overlay, mine)
        first, *others = self.hardware.disks
        return replace(self.hardware, disks=(replace(first, overlay=mine), *others))

    async def boot(self, name: str) -> Machine:
        """Boot a machine whose memory image is `memory` in its place."""
        place = self.place(name)
        return await self.driver.boot(place, self.with_overlay(place), place.folder / "memory")

    async def save_once(self) -> Saved:
        """Boot, freeze and save a guest the first time; later return what was saved."""
        if self.saved is None:
            machine = await self.boot("saved")
            try:
                await _answers(machine)
                await machine.pause()
                folder = self.folder / "saved"
                self.saved_overlay = self.folder / "saved.qcow2"
                await machine.save_state(folder / "state")
                clone(folder / "disk.qcow2", self.saved_overlay)
            finally:
                await machine.aclose()
            self.saved = Saved(folder / "memory", folder / "state")
        return self.saved

    async def load(self, name: str) -> Machine:
        """Load the saved guest into a new place."""
        saved = await self.save_once()
        place = self.place(name)
        return await self.driver.load(place, self.with_overlay(place, self.saved_overlay), saved)


async def _answers(machine: Machine) -> None:
    await machine.resume()
    guest = await connect(machine.open_channel(), timeout_s=PATIENCE_S)
    try:
        await guest.ping()
    finally:
        await guest.aclose()


def _is_process(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


class VmmContract:
    """The promises of `torpor.vmm.driver`, one test each."""

    async def test_a_booted_machine_lives_and_its_guest_answers(self, rig: Rig) -> None:
        machine = await rig.boot("boot")
        try:
            assert machine.alive
            await _answers(machine)
        finally:
            await machine.aclose()

    async def test_a_loaded_machine_runs_when_it_is_resumed_and_its_guest_answers(self, rig: Rig) -> None:
        machine = await rig.load("load")
        try:
            await _answers(machine)
        finally:
            await machine.aclose()

    async def test_a_machine_s_folder_can_be_renamed(self, rig: Rig) -> None:
        machine = await rig.load("before")
        try:
            place = Place("after", rig.folder / "after")
            (rig.folder / "before").rename(place.folder)
            machine.move(place)
            await _answers(machine)
            assert place.console.exists()
        finally:
            await machine.aclose()
        assert {path.suffix for path in place.folder.iterdir()} <= {".log", ".qcow2"}

    async def test_two_machines_from_one_image_live_side_by_side(self, rig: Rig) -> None:
        first, second = await rig.load("first"), await rig.load("second")
        try:
            assert first.pid != second.pid
            await _answers(first)
            await _answers(second)
        finally:
            await first.aclose()
            await second.aclose()

    async def test_loading_does_not_change_what_was_saved(self, rig: Rig) -> None:
        saved = await rig.save_once()
        before = saved.memory.read_bytes(), saved.state.read_bytes()
        machine = await rig.load("unchanged")
        await _answers(machine)
        await machine.aclose()
        assert (saved.memory.read_bytes(), saved.state.read_bytes()) == before

    async def test_the_channel_can_be_opened_again_after_it_was_closed(self, rig: Rig) -> None:
        machine = await rig.load("reopened")
        try:
            await _answers(machine)
            await _answers(machine)
        finally:
            await machine.aclose()

    async def test_a_paused_and_saved_machine_runs_on_when_resumed(self, rig: Rig) -> None:
        machine = await rig.load("resumed")
        try:
            await machine.pause()
            await machine.pause()
            await machine.save_state(rig.folder / "resumed" / "state")
            await machine.resume()
            await machine.resume()
            await _answers(machine)
        finally:
            await machine.aclose()

    async def test_a_damaged_state_is_refused_and_leaves_no_machine(self, rig: Rig) -> None:
        saved = await rig.save_once()
        damaged = rig.folder / "damaged-state"
        whole = saved.state.read_bytes()
        damaged.write_bytes(whole[: len(whole) // 2])
        place = rig.place("damaged")
        with pytest.raises(RestoreFailed):
            await rig.driver.load(place, rig.with_overlay(place, rig.saved_overlay), Saved(saved.memory, damaged))
        assert {path.suffix for path in place.folder.iterdir()} <= {".log", ".qcow2"}

    async def test_a_cancelled_load_leaves_no_machine(self, rig: Rig) -> None:
        await rig.save_once()
        loading = asyncio.ensure_future(rig.load("cancelled"))
        await asyncio.sleep(0)
        loading.cancel()
        try:
            machine = await loading
        except asyncio.CancelledError:
            pass  # the usual end; a driver that was already done hands the machine over instead
        else:
            await machine.aclose()
        folder = rig.folder / "cancelled"
        assert {path.suffix for path in folder.iterdir()} <= {".log", ".qcow2"}

    async def test_a_state_that_is_gone_is_refused_and_leaves_no_machine(self, rig: Rig) -> None:
        saved = await rig.save_once()
        place = rig.place("gone")
        with pytest.raises(RestoreFailed):
            await rig.driver.load(
                place, rig.with_overlay(place, rig.saved_overlay), Saved(saved.memory, rig.folder / "absent")
            )
        assert {path.suffix for path in place.folder.iterdir()} <= {".log", ".qcow2"}

    async def test_closing_ends_the_process_and_again_does_nothing(self, rig: Rig) -> None:
        machine = await rig.load("closed")
        await machine.aclose()
        await machine.aclose()
        assert not machine.alive
        assert not (rig.real and _is_process(machine.pid))

    async def test_a_closed_machine_says_how_it_ended_and_takes_no_orders(self, rig: Rig) -> None:
        machine = await rig.load("ended")
        assert machine.end == ""
        await machine.aclose()
        await machine.wait_gone()
        assert machine.end
        with pytest.raises(SandboxLost):
            machine.open_channel()
        with pytest.raises(SandboxLost):
            await machine.pause()
        with pytest.raises(FreezeFailed):
            await machine.save_state(rig.folder / "ended" / "state")
        assert not (rig.folder / "ended" / "state").exists()

    async def test_a_killed_machine_is_noticed(self, rig: Rig) -> None:
        if not rig.real:
            pytest.skip("a machine in memory has no process to kill")
        machine = await rig.load("killed")
        os.kill(machine.pid, signal.SIGKILL)
        await machine.wait_gone()
        assert "SIGKILL" in machine.end
        assert not machine.alive
        await machine.aclose()
