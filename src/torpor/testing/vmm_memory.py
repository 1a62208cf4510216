"""The part of the VMM contract's suite that is about saving memory; `torpor.testing.vmm_contract` is the whole."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import pytest

from torpor.errors import FreezeFailed, OutOfSpace, SandboxLost
from torpor.guest.client import Guest
from torpor.kit.files import allocated_bytes, clone
from torpor.testing.vmm_rig import Rig, answers, get, put, running
from torpor.vmm.driver import Saved
from torpor.wire.host import ExecOrder

MIB = 1 << 20
# In memory, in a real guest: a RAM disk.
_FILE = "/dev/shm/file"  # noqa: S108


class MemoryContract:
    """What `Machine.save_memory` promises, one test each."""

    async def test_what_a_guest_changed_outlives_saving_and_loading_again_and_again(self, rig: Rig) -> None:
        frozen = await rig.freeze_once()
        for number in range(3):
            name = f"generation-{number}"
            machine = await rig.load(name, frozen)
            try:
                async with running(machine) as guest:
                    for earlier in range(number):
                        assert await get(guest, f"{_FILE}-{earlier}") == b"%d" % earlier * 5000
                    await put(guest, f"{_FILE}-{number}", b"%d" % number * 5000)
                frozen = await rig.freeze(name, machine, frozen, to=f"{name}-saved")
            finally:
                await machine.aclose()
            assert frozen.written is not None
            assert frozen.written.dirty_bytes >= frozen.written.written_bytes > 0

    async def test_a_machine_runs_on_after_it_was_saved(self, rig: Rig) -> None:
        machine = await rig.load("parent")
        try:
            async with running(machine) as guest:
                await put(guest, _FILE, b"before")
            first = await rig.freeze("parent", machine, await rig.freeze_once(), to="parent-saved")
            async with running(machine) as guest:
                assert await get(guest, _FILE) == b"before"
                await put(guest, _FILE, b"after")
        finally:
            await machine.aclose()
        child = await rig.load("child", first)
        try:
            async with running(child) as guest:
                assert await get(guest, _FILE) == b"before"
        finally:
            await child.aclose()

    async def test_saving_again_writes_only_what_changed_since(self, rig: Rig) -> None:
        machine = await rig.load("twice")
        try:
            async with running(machine) as guest:
                await put(guest, _FILE, os.urandom(MIB))
            first = await rig.freeze("twice", machine, await rig.freeze_once(), to="twice-1")
            second = await rig.freeze("twice", machine, first, to="twice-2")
        finally:
            await machine.aclose()
        assert first.written is not None
        assert second.written is not None
        assert first.written.written_bytes >= MIB
        assert second.written.dirty_bytes >= MIB
        assert second.written.runs == ()
        assert first.saved.memory.read_bytes() == second.saved.memory.read_bytes()

    async def test_what_is_written_is_what_differs_from_the_copy(self, rig: Rig) -> None:
        base = (await rig.freeze_once()).saved.memory
        machine = await rig.load("differs")
        try:
            async with running(machine) as guest:
                await put(guest, _FILE, os.urandom(MIB))
            frozen = await rig.freeze("differs", machine, await rig.freeze_once(), to="differs-saved")
        finally:
            await machine.aclose()
        assert frozen.written is not None
        before, after = bytearray(base.read_bytes()), frozen.saved.memory.read_bytes()
        for offset, length in frozen.written.runs:
            assert before[offset : offset + length] != after[offset : offset + length]
            before[offset : offset + length] = after[offset : offset + length]
        assert before == after

    async def test_memory_that_holds_zeros_again_takes_no_space(self, rig: Rig) -> None:
        machine = await rig.load("zeros")
        try:
            async with running(machine) as guest:
                await put(guest, _FILE, os.urandom(8 * MIB))
            full = await rig.freeze("zeros", machine, await rig.freeze_once(), to="zeros-1")
            async with running(machine) as guest:
                await _clear(guest, real=rig.real)
            empty = await rig.freeze("zeros", machine, full, to="zeros-2")
        finally:
            await machine.aclose()
        assert allocated_bytes(empty.saved.memory) <= allocated_bytes(full.saved.memory) - 4 * MIB
        assert empty.saved.memory.stat().st_size == full.saved.memory.stat().st_size

    async def test_two_machines_from_one_image_do_not_see_each_other_s_writes(self, rig: Rig) -> None:
        first, second = await rig.load("one"), await rig.load("other")
        try:
            async with running(first) as one, running(second) as other:
                await put(one, _FILE, b"one's")
                assert await get(other, _FILE) is None
                await put(other, _FILE, b"the other's")
                assert await get(one, _FILE) == b"one's"
        finally:
            await first.aclose()
            await second.aclose()

    async def test_an_image_may_be_unlinked_as_soon_as_a_machine_maps_it(self, rig: Rig) -> None:
        frozen = await rig.freeze_once()
        folder = rig.place("unlinked-base").folder
        for name, source in (("memory", frozen.saved.memory), ("state", frozen.saved.state)):
            clone(source, folder / name)
        machine = await rig.load("unlinked", replace(frozen, saved=Saved(folder / "memory", folder / "state")))
        try:
            for path in folder.iterdir():
                path.unlink()
            async with running(machine) as guest:
                await put(guest, _FILE, b"kept")
            saved = await rig.freeze("unlinked", machine, frozen, to="unlinked-saved")
        finally:
            await machine.aclose()
        machine = await rig.load("relinked", saved)
        try:
            async with running(machine) as guest:
                assert await get(guest, _FILE) == b"kept"
        finally:
            await machine.aclose()

    async def test_memory_that_cannot_be_written_leaves_the_machine_as_it_was(self, rig: Rig) -> None:
        frozen = await rig.freeze_once()
        folder = rig.place("unwritable").folder
        (folder / "short").write_bytes(b"no image")
        machine = await rig.load("unsaved")
        try:
            async with running(machine) as guest:
                await put(guest, _FILE, b"still here")
            await machine.pause()
            for target in (folder / "absent", folder, folder / "short"):
                with pytest.raises(FreezeFailed):
                    await machine.save_memory(target)
            async with running(machine) as guest:
                assert await get(guest, _FILE) == b"still here"
            await rig.freeze("unsaved", machine, frozen, to="unsaved-saved")
        finally:
            await machine.aclose()

    async def test_a_full_disk_of_the_host_is_told_and_leaves_the_machine_as_it_was(self, rig: Rig) -> None:
        if rig.cramped is None:
            pytest.skip("there is no small file system to fill")
        frozen = await rig.freeze_once()
        machine = await rig.load("cramped-out")
        image = rig.cramped / "memory"
        try:
            async with running(machine) as guest:
                await put(guest, _FILE, os.urandom(MIB))
            await machine.pause()
            image.touch()
            os.truncate(image, frozen.saved.memory.stat().st_size)
            with pytest.raises(OutOfSpace, match="the host's disk is full"):
                await machine.save_memory(image, like=frozen.saved.memory)
            await answers(machine)
        finally:
            image.unlink()
            await machine.aclose()

    async def test_only_a_loaded_machine_that_is_paused_is_saved(self, rig: Rig) -> None:
        frozen = await rig.freeze_once()
        copy = rig.place("copies").folder / "memory"
        clone(frozen.saved.memory, copy)
        machine = await rig.load("running")
        try:
            await machine.resume()
            with pytest.raises(FreezeFailed, match="paused"):
                await machine.save_memory(copy)
        finally:
            await machine.aclose()
        booted = await rig.boot("booted")
        try:
            await booted.pause()
            with pytest.raises(FreezeFailed, match="booted"):
                await booted.save_memory(copy)
        finally:
            await booted.aclose()

    async def test_a_machine_that_is_killed_while_it_is_saved_is_lost(self, rig: Rig) -> None:
        if not rig.real:
            pytest.skip("a machine in memory has no process to kill")
        frozen = await rig.freeze_once()
        copy = rig.place("killed-copies").folder / "memory"
        clone(frozen.saved.memory, copy)
        machine = await rig.load("killed-while-saved")
        await answers(machine)
        await machine.pause()
        saving = asyncio.ensure_future(machine.save_memory(copy, like=frozen.saved.memory))
        os.kill(machine.pid, signal.SIGKILL)
        with pytest.raises(SandboxLost):
            await saving
        await machine.aclose()


async def _clear(guest: Guest, *, real: bool) -> None:
    """Make the bytes of a guest's file zeros where they are; a guest in memory keeps them as text, and drops them."""
    if not real:
        await guest.remove(_FILE)
        return
    script = f"head -c {8 * MIB} /dev/zero | dd of={_FILE} bs=64k conv=notrunc,fsync status=none"
    assert (await guest.run(ExecOrder(argv=["/bin/sh", "-c", script]))).exit_code == 0
