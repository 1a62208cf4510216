"""The suite that every VMM driver passes.

A driver's test module subclasses `VmmContract` and gives it a fixture `rig`: a driver, hardware that it can boot
whose guest runs Torpor's agent, and a folder to work in.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from torpor.errors import FreezeFailed, RestoreFailed, SandboxLost
from torpor.guest.client import connect
from torpor.testing.vmm_adoption import AdoptionContract
from torpor.testing.vmm_bays import BaysContract
from torpor.testing.vmm_memory import MemoryContract
from torpor.testing.vmm_rig import PATIENCE_S, Rig, answers
from torpor.vmm.driver import Place, Saved
from torpor_guest import protocol


async def _rest_of(line: socket.socket) -> bytes:
    """Read a channel to its end; a reset counts as one, since it comes after all that was sent."""
    found = bytearray()
    try:
        while data := await asyncio.get_running_loop().sock_recv(line, 65536):
            found += data
    except ConnectionResetError:
        pass
    return bytes(found)


def _is_process(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


class VmmContract(MemoryContract, AdoptionContract, BaysContract):
    """The promises of `torpor.vmm.driver`, one test each."""

    async def test_a_booted_machine_lives_and_its_guest_answers(self, rig: Rig) -> None:
        machine = await rig.boot("boot")
        try:
            assert machine.alive
            await answers(machine)
        finally:
            await machine.aclose()

    async def test_a_loaded_machine_runs_when_it_is_resumed_and_its_guest_answers(self, rig: Rig) -> None:
        machine = await rig.load("load")
        try:
            await answers(machine)
        finally:
            await machine.aclose()

    async def test_a_machine_s_folder_can_be_renamed(self, rig: Rig) -> None:
        machine = await rig.load("before")
        try:
            place = Place("after", rig.folder / "after")
            (rig.folder / "before").rename(place.folder)
            machine.move(place)
            await answers(machine)
            assert place.console.exists()
        finally:
            await machine.aclose()
        assert {path.suffix for path in place.folder.iterdir()} <= {".log", ".qcow2"}

    async def test_two_machines_from_one_image_live_side_by_side(self, rig: Rig) -> None:
        first, second = await rig.load("first"), await rig.load("second")
        try:
            assert first.pid != second.pid
            await answers(first)
            await answers(second)
        finally:
            await first.aclose()
            await second.aclose()

    async def test_loading_does_not_change_what_was_saved(self, rig: Rig) -> None:
        saved = (await rig.freeze_once()).saved
        before = saved.memory.read_bytes(), saved.state.read_bytes()
        machine = await rig.load("unchanged")
        await answers(machine)
        await machine.aclose()
        assert (saved.memory.read_bytes(), saved.state.read_bytes()) == before

    async def test_the_channel_can_be_opened_again_after_it_was_closed(self, rig: Rig) -> None:
        machine = await rig.load("reopened")
        try:
            await answers(machine)
            await answers(machine)
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
            await answers(machine)
        finally:
            await machine.aclose()

    async def test_a_damaged_state_is_refused_and_leaves_no_machine(self, rig: Rig) -> None:
        frozen = await rig.freeze_once()
        damaged = rig.folder / "damaged-state"
        whole = frozen.saved.state.read_bytes()
        damaged.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(RestoreFailed):
            await rig.load("damaged", replace(frozen, saved=Saved(frozen.saved.memory, damaged)))
        assert {path.suffix for path in (rig.folder / "damaged").iterdir()} <= {".log", ".qcow2"}

    async def test_a_cancelled_load_leaves_no_machine(self, rig: Rig) -> None:
        await rig.freeze_once()
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
        frozen = await rig.freeze_once()
        with pytest.raises(RestoreFailed):
            await rig.load("gone", replace(frozen, saved=Saved(frozen.saved.memory, rig.folder / "absent")))
        assert {path.suffix for path in (rig.folder / "gone").iterdir()} <= {".log", ".qcow2"}

    async def test_an_image_that_is_gone_is_refused_and_leaves_no_machine(self, rig: Rig) -> None:
        frozen = await rig.freeze_once()
        with pytest.raises(RestoreFailed):
            await rig.load("imageless", replace(frozen, saved=Saved(rig.folder / "absent", frozen.saved.state)))
        assert {path.suffix for path in (rig.folder / "imageless").iterdir()} <= {".log", ".qcow2"}

    async def test_a_channel_that_was_opened_before_the_machine_ran_is_answered_once_it_does(self, rig: Rig) -> None:
        machine = await rig.load("early")
        try:
            line = machine.open_channel()
            asking = asyncio.ensure_future(connect(line, timeout_s=PATIENCE_S))
            await machine.pause()  # by its answer, what we sent has had its time
            assert not asking.done()
            await machine.resume()
            async with await asking as guest:
                await guest.ping()
        finally:
            await machine.aclose()

    async def test_what_the_guest_had_sent_can_be_read_after_the_machine_has_ended(self, rig: Rig) -> None:
        machine = await rig.load("last-words")
        loop = asyncio.get_running_loop()
        with machine.open_channel() as line:
            line.setblocking(False)
            await loop.sock_sendall(line, protocol.hello(bytes(16)))
            await machine.resume()
            arrived = asyncio.Event()
            loop.add_reader(line, arrived.set)
            await asyncio.wait_for(arrived.wait(), PATIENCE_S)
            loop.remove_reader(line)
            await machine.aclose()
            assert await _rest_of(line)

    async def test_closing_ends_the_process_and_again_does_nothing(self, rig: Rig) -> None:
        machine = await rig.load("closed")
        await machine.aclose()
        await machine.aclose()
        assert not machine.alive
        assert not (rig.real and _is_process(machine.pid))

    async def test_a_closed_machine_says_how_it_ended_and_takes_no_orders(self, rig: Rig) -> None:
        frozen = await rig.freeze_once()
        machine = await rig.load("ended", frozen)
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
        with pytest.raises(SandboxLost):
            await machine.save_memory(rig.folder / "ended" / "memory")
        with pytest.raises(SandboxLost):
            await machine.read_ahead(frozen.saved.memory)
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
