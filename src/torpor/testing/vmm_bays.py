"""The part of the suite for VMM drivers that is about bays: disks that are put into machines, and outlive them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from torpor.errors import RestoreFailed, SandboxLost
from torpor.kit.files import clone
from torpor.testing.vmm_rig import Rig, get, put, running

_MB = 16
_BYTES = _MB * 1024 * 1024
_PATH, _FILE = "/bay", "/bay/note"


class BaysContract:
    """What `torpor.vmm.driver` promises of bays, one test each. Only a real guest has a file system in one."""

    async def test_a_disk_in_a_bay_outlives_its_machine(self, rig: Rig) -> None:
        disk = _new_disk(rig, "outlives.img")
        for name, before in (("bay-1", None), ("bay-2", b"kept")):
            machine = await rig.load(name)
            try:
                async with running(machine) as guest:
                    await machine.attach(0, disk)
                    await guest.mount(0, _PATH, _BYTES, read_only=False)
                    if rig.real:
                        assert await get(guest, _FILE) == before
                    await put(guest, _FILE, b"kept")
                    await guest.quiesce(timeout_s=10)
            finally:
                await machine.aclose()

    async def test_a_machine_that_has_run_can_be_given_one_while_it_stands_still(self, rig: Rig) -> None:
        machine = await rig.load("bay-still")
        try:
            async with running(machine) as guest:
                await machine.pause()
                await machine.attach(1, _new_disk(rig, "still.img"))
                await machine.resume()
                await guest.mount(1, _PATH, _BYTES, read_only=True)
        finally:
            await machine.aclose()

    async def test_a_saved_guest_goes_on_with_a_copy_of_the_disk_as_it_was(self, rig: Rig) -> None:
        disk, copy = _new_disk(rig, "first.img"), rig.folder / "copy.img"
        base = await rig.freeze_once()
        machine = await rig.load("bay-saved", base)
        try:
            async with running(machine) as guest:
                await machine.attach(0, disk)
                await guest.mount(0, _PATH, _BYTES, read_only=False)
                await put(guest, _FILE, b"before")
                frozen = await rig.freeze("bay-saved", machine, base, to="bay-frozen")
                clone(disk, copy)
                await machine.resume()
                await put(guest, _FILE, b"after")
        finally:
            await machine.aclose()
        machine = await rig.load("bay-restored", frozen, bays=(copy,))
        try:
            async with running(machine) as guest:
                assert await get(guest, _FILE) == b"before"
                await put(guest, _FILE, b"in the copy")
                await guest.quiesce(timeout_s=10)
        finally:
            await machine.aclose()

    async def test_what_cannot_be_attached_is_refused_and_the_machine_runs_on(self, rig: Rig) -> None:
        machine = await rig.load("bay-refused")
        try:
            async with running(machine) as guest:
                for bay, file in ((99, _new_disk(rig, "refused.img")), (0, rig.folder / "missing.img")):
                    with pytest.raises(RestoreFailed):
                        await machine.attach(bay, file)
                await guest.ping()
        finally:
            await machine.aclose()
        with pytest.raises(SandboxLost):
            await machine.attach(0, rig.folder / "refused.img")


def _new_disk(rig: Rig, name: str) -> Path:
    """Make a disk, with a file system for a real guest."""
    disk = rig.folder / name
    disk.touch()
    os.truncate(disk, _BYTES)
    if rig.real and (program := shutil.which("mke2fs")) is not None:
        subprocess.run([program, "-q", "-F", "-t", "ext4", str(disk)], check=True)
    return disk
