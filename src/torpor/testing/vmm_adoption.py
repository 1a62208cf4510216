"""The part of the VMM contract's suite that is about machines which outlive the program that loaded them;
`torpor.testing.vmm_contract` is the whole.
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import pytest

from torpor.errors import SandboxLost, Unavailable
from torpor.guest.client import connect
from torpor.kit.procfs import mark_of
from torpor.testing.vmm_rig import PATIENCE_S, Rig, answers, get, put, running
from torpor.vmm.bounded_log import read_log
from torpor.vmm.driver import Machine, Place
from torpor.wire.host import ExecOrder

# In memory, in a real guest: a RAM disk.
_FILE = "/dev/shm/file"  # noqa: S108


class AdoptionContract:
    """What `Survivors` promises, and `Machine.leave`, one test each."""

    async def test_a_machine_whose_program_was_killed_is_taken_over_as_it_was(self, rig: Rig) -> None:
        frozen = await rig.freeze_once()
        left = await rig.abandon("abandoned")
        assert left.trace.process in left.survivors.below(rig.folder)
        machine = await left.survivors.adopt(left.place, left.trace, within_s=PATIENCE_S)
        try:
            assert (machine.alive, machine.pid, machine.trace) == (True, left.trace.process.pid, left.trace)
            async with running(machine) as guest:
                assert await get(guest, left.file) == left.content
                await put(guest, _FILE, b"after")
            saved = await rig.freeze("abandoned", machine, frozen, to="abandoned-saved")
            await answers(machine)
        finally:
            await machine.aclose()
        assert not machine.alive
        assert machine.end
        assert left.survivors.below(rig.folder) == []
        assert {path.suffix for path in left.place.folder.iterdir()} <= {".log", ".qcow2"}
        machine = await rig.load("abandoned-again", saved)
        try:
            async with running(machine) as guest:
                assert (await get(guest, left.file), await get(guest, _FILE)) == (left.content, b"after")
        finally:
            await machine.aclose()

    async def test_a_machine_that_runs_is_not_stopped_by_the_death_of_its_program(self, rig: Rig) -> None:
        left = await rig.abandon("running-on")
        machine = await left.survivors.adopt(left.place, left.trace, within_s=PATIENCE_S)
        try:
            async with await connect(machine.open_channel(), timeout_s=PATIENCE_S) as guest:
                await guest.ping()
        finally:
            await machine.aclose()

    async def test_a_machine_that_stood_still_does_so_until_its_new_owner_resumes_it(self, rig: Rig) -> None:
        left = await rig.abandon("standing", pauses=True)
        machine = await left.survivors.adopt(left.place, left.trace, within_s=PATIENCE_S)
        try:
            asking = asyncio.ensure_future(connect(machine.open_channel(), timeout_s=PATIENCE_S))
            await machine.pause()  # by its answer, what we sent has had its time
            assert not asking.done()
            await machine.resume()
            async with await asking as guest:
                assert await get(guest, left.file) == left.content
        finally:
            await machine.aclose()

    async def test_a_machine_in_a_place_that_was_renamed_is_taken_over_there(self, rig: Rig) -> None:
        left = await rig.abandon("named-before")
        place = Place("named-after", rig.folder / "named-after")
        left.place.folder.rename(place.folder)
        assert left.trace.process in left.survivors.below(rig.folder)
        machine = await left.survivors.adopt(place, left.trace, within_s=PATIENCE_S)
        try:
            await answers(machine)
        finally:
            await machine.aclose()
        assert {path.suffix for path in place.folder.iterdir()} <= {".log", ".qcow2"}

    async def test_what_is_left_can_be_ended_without_being_taken_over(self, rig: Rig) -> None:
        left = await rig.abandon("unwanted")
        await left.survivors.end(left.trace.process)
        await left.survivors.end(left.trace.process)
        assert left.trace.process not in left.survivors.below(rig.folder)
        with pytest.raises(SandboxLost):
            await left.survivors.adopt(left.place, left.trace, within_s=PATIENCE_S)

    async def test_a_machine_that_was_left_goes_on_and_is_not_touched_by_who_left_it(self, rig: Rig) -> None:
        if not rig.real:
            pytest.skip("a machine in memory is in the hands of its own driver")
        frozen = await rig.freeze_once()
        machine = await rig.load("left", frozen)
        await answers(machine)
        assert machine.trace is not None
        await machine.leave()
        await machine.leave()
        await machine.aclose()
        taken = await rig.survivors.adopt(Place("left", rig.folder / "left"), machine.trace, within_s=PATIENCE_S)
        try:
            await answers(taken)
        finally:
            await taken.aclose()

    async def test_another_process_of_that_number_is_no_machine_and_not_touched(self, rig: Rig) -> None:
        if not rig.real:
            pytest.skip("a machine in memory has no process")
        machine = await rig.load("number")
        try:
            assert machine.trace is not None
            own = mark_of(os.getpid())
            assert own is not None
            older = replace(machine.trace, process=replace(own, started=own.started - 1))
            with pytest.raises(SandboxLost):
                await rig.survivors.adopt(Place("number", rig.folder / "number"), older, within_s=PATIENCE_S)
            await rig.survivors.end(older.process)
            await answers(machine)
        finally:
            await machine.aclose()

    async def test_what_the_guest_says_after_it_was_taken_over_is_kept_behind_what_it_said_before(
        self, rig: Rig
    ) -> None:
        if not rig.real:
            pytest.skip("a guest in memory says nothing")
        left = await rig.abandon("talking")
        before = len(read_log(left.place.console))
        machine = await left.survivors.adopt(left.place, left.trace, within_s=PATIENCE_S)
        try:
            async with running(machine) as guest:
                await guest.run(ExecOrder(argv=["/bin/sh", "-c", "echo and so on > /dev/console; sleep 0.2"]))
        finally:
            await machine.aclose()
        assert b"and so on" in read_log(left.place.console)[before:]

    async def test_a_machine_that_does_not_answer_is_left_as_it_is_and_taken_over_later(self, rig: Rig) -> None:
        if not rig.real:
            pytest.skip("a machine in memory always answers")
        left = await rig.abandon("mute")
        pid = left.trace.process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(4):
                with pytest.raises(Unavailable, match="did not answer"):
                    await left.survivors.adopt(left.place, left.trace, within_s=0.1)
            adopting = asyncio.create_task(left.survivors.adopt(left.place, left.trace, within_s=PATIENCE_S))
            await asyncio.sleep(0)
            adopting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await adopting
            assert left.trace.process in left.survivors.below(rig.folder)
            os.kill(pid, signal.SIGCONT)
            machine = await left.survivors.adopt(left.place, left.trace, within_s=PATIENCE_S)
            await answers(machine)
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(Unavailable, match="accepts no connection"):
                _open_and_close(machine, 100)
            await machine.aclose()
        finally:
            await left.survivors.end(left.trace.process)

    async def test_what_a_machine_has_used_is_told_while_it_runs(self, rig: Rig) -> None:
        machine = await rig.load("measured")
        try:
            await answers(machine)
            spent, held = machine.cpu_seconds(), machine.resident_bytes()
            assert spent is not None
            assert held is not None
            if rig.real:
                assert 0 < spent < PATIENCE_S
                assert 8 << 20 < held < 1 << 30
        finally:
            await machine.aclose()
        assert (machine.cpu_seconds(), machine.resident_bytes()) == (None, None)


def _open_and_close(machine: Machine, times: int) -> None:
    for _ in range(times):
        machine.open_channel().close()
