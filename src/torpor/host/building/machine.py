"""A machine that the steps of a build are taken in: booted from cold, on a new disk over an image, and thrown away."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from torpor.errors import Failed
from torpor.guest.client import Guest, connect
from torpor.host.building.workshop import Workshop
from torpor.host.flow.boot import BOOT_PATIENCE_S, booted, logged_place
from torpor.host.hardware import hardware_of
from torpor.kit.owning import own
from torpor.model.identity import NOBODY
from torpor.model.template import Template
from torpor.storage.disks import make_overlay
from torpor.storage.jailed import WORK, Jailed
from torpor.storage.kernel import AGENT_ARGV
from torpor.wire.frames import Kind
from torpor.wire.host import ExecOrder, ExecOutcome

_FINISH_S = 300.0
_DISK, _MEMORY = "disk.qcow2", "memory"


def guest_python(script: str, *words: str) -> list[str]:
    """Return the command that runs one of the agent's own programs in a guest, whatever that has of its own."""
    *python, agent = AGENT_ARGV
    return [*python, f"{agent}/torpor_guest/{script}.py", *words]


@asynccontextmanager
async def working_guest(shop: Workshop, described: Template, folder: Path) -> AsyncIterator[Guest]:
    """Boot a machine of what is described, in an empty folder, and yield its guest; the disk in the folder stays.

    It reaches the internet where the host has a network for sandboxes. Raises BootFailed, RestoreFailed, NoCapacity.
    """
    async with AsyncExitStack() as undo:
        await undo.enter_async_context(shop.admit(described))
        yield await booted(lambda: _boot(shop, described, folder, undo), shop.log)


async def _boot(shop: Workshop, described: Template, folder: Path, undo: AsyncExitStack) -> Guest:
    """Boot once. What was opened is closed by `undo`, or at once if it fails."""
    driver, disk = await shop.choose(), folder / _DISK
    async with AsyncExitStack() as trial:
        place = trial.enter_context(logged_place("build", folder, shop.log))
        slot = await own(trial, shop.network.take())
        hardware = hardware_of(shop.images, described, disk)
        for left in (disk, folder / _MEMORY):  # of an earlier attempt
            left.unlink(missing_ok=True)
        await make_overlay(hardware.disks[0].image, disk)
        tap = slot.open_tap()
        try:
            machine = await own(trial, driver.boot(place, hardware, folder / _MEMORY, tap))
        finally:
            if tap is not None:
                os.close(tap)
        guest = await own(trial, connect(machine.open_channel(), timeout_s=BOOT_PATIENCE_S))
        await guest.adopt(NOBODY)
        slot.open_gate()
        undo.push_async_exit(trial.pop_all())
        return guest


async def finish(guest: Guest) -> None:
    """Bring the guest's disk to rest: all that was written is on it, and nobody writes any more. Raises Failed."""
    said = bytearray()
    order = ExecOrder(argv=guest_python("finish"), user="root", cwd="/", timeout_s=_FINISH_S)
    async with guest.exec(order) as frames:
        async for kind, payload in frames:
            if kind is not Kind.EXIT:
                said += payload
            elif ExecOutcome.model_validate_json(payload).exit_code != 0:
                words = said[-300:].decode(errors="replace")
                raise Failed(f"the disk of the build could not be finished: {words}")


async def flatten(folder: Path, image: Path, into: Path, log: Path) -> None:
    """Write the disk of a machine that has ended, over the image it was made on, as a raw image `into`/root.img.

    The disk was written by a stranger's guest, so what is read is said here, not in it. Raises Failed.
    """
    disk = {
        "driver": "qcow2",
        "file": {"driver": "file", "filename": "/disk.qcow2"},
        "backing": {"driver": "raw", "file": {"driver": "file", "filename": "/base.img"}},
    }
    jail = Jailed(into, {"/disk.qcow2": folder / _DISK, "/base.img": image})
    argv = ["qemu-img", "convert", "-O", "raw", "-S", "4k", f"json:{json.dumps(disk)}", f"{WORK}/root.img"]
    await jail.run(argv, "qemu-utils", "the disk of the build was not written", log)
