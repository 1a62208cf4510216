"""What the suites of the VMM contract work with: a driver, a guest that it can run, and what was saved of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from torpor.errors import NotFound
from torpor.guest.client import Guest, connect
from torpor.kit.files import clone
from torpor.kit.runs import Written
from torpor.vmm.driver import Driver, Hardware, Machine, Place, Saved, Survivors, Trace

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A guest on disk: what is loaded, and its overlay of the same instant. `written`: what saving its memory took."""

    saved: Saved
    overlay: Path
    written: Written | None = None


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A machine whose program was killed after it had written `content` to a `file` of the guest."""

    place: Place
    trace: Trace
    survivors: Survivors
    file: str
    content: bytes


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """What the program that is to be killed does: load a machine, write a file in it, and maybe pause it."""

    place: Place
    hardware: Hardware
    saved: Saved
    pauses: bool
    file: str = "/dev/shm/before"  # noqa: S108 - in a guest
    content: bytes = b"before"

    async def carry_out(self, driver: Driver) -> Machine:
        """Do it."""
        machine = await driver.load(self.place, self.hardware, self.saved)
        async with running(machine) as guest:
            await put(guest, self.file, self.content)
        if self.pauses:
            await machine.pause()
        return machine


# Carries an order out in a program that is killed then; returns the machine's trace, and who finds it.
Abandon = Callable[[Driver, LoadOrder], Awaitable[tuple[Trace, Survivors]]]


@dataclass
class Rig:
    """What the suite works with: `hardware` without an overlay on its first disk, with two bays or more, and `overlay`,
    an empty one for that disk.

    `real`: a machine's pid is that of a process, which the suite may kill. `survivors` finds what was left by others;
    `abandoning`: see Abandon. `cramped`: a folder on a file system with
    room for a few pages only; None where there is none.
    """

    driver: Driver
    survivors: Survivors
    abandoning: Abandon
    hardware: Hardware
    overlay: Path
    folder: Path
    real: bool
    cramped: Path | None = None
    first: Checkpoint | None = None

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

    async def freeze_once(self) -> Checkpoint:
        """Boot, freeze and save a guest the first time; later return what was saved."""
        if self.first is None:
            machine = await self.boot("saved")
            try:
                await answers(machine)
                await machine.pause()
                folder, overlay = self.folder / "saved", self.folder / "saved.qcow2"
                await machine.save_state(folder / "state")
                clone(folder / "disk.qcow2", overlay)
            finally:
                await machine.aclose()
            self.first = Checkpoint(Saved(folder / "memory", folder / "state"), overlay)
        return self.first

    async def load(self, name: str, frozen: Checkpoint | None = None, bays: tuple[Path | None, ...] = ()) -> Machine:
        """Load a saved guest, the first one unless another is given, into a new place, with these in its first bays."""
        frozen = frozen or await self.freeze_once()
        place = self.place(name)
        hardware = self.with_overlay(place, frozen.overlay)
        hardware = replace(hardware, bays=(*bays, *hardware.bays[len(bays) :]))
        return await self.driver.load(place, hardware, frozen.saved)

    async def abandon(self, name: str, *, pauses: bool = False) -> Abandoned:
        """Have a program load the first guest into a new place and be killed."""
        frozen = await self.freeze_once()
        place = self.place(name)
        order = LoadOrder(place, self.with_overlay(place, frozen.overlay), frozen.saved, pauses)
        trace, survivors = await self.abandoning(self.driver, order)
        return Abandoned(place, trace, survivors, order.file, order.content)

    async def freeze(self, name: str, machine: Machine, base: Checkpoint, *, to: str) -> Checkpoint:
        """Pause the machine in the place `name` and save it to a new folder `to`, over a copy of `base`."""
        folder = self.place(to).folder
        await machine.read_ahead(base.saved.memory)
        await machine.pause()
        await machine.save_state(folder / "state")
        clone(base.saved.memory, folder / "memory")
        written = await machine.save_memory(folder / "memory", like=base.saved.memory)
        clone(self.folder / name / "disk.qcow2", folder / "overlay")
        return Checkpoint(Saved(folder / "memory", folder / "state"), folder / "overlay", written)


async def answers(machine: Machine) -> None:
    """Let the machine run and have its guest answer."""
    async with running(machine) as guest:
        await guest.ping()


@asynccontextmanager
async def running(machine: Machine) -> AsyncIterator[Guest]:
    """Let the machine run, and yield its guest."""
    line = machine.open_channel()
    await machine.resume()
    guest = await connect(line, timeout_s=PATIENCE_S)
    try:
        yield guest
    finally:
        await guest.aclose()


async def put(guest: Guest, path: str, data: bytes) -> None:
    """Write a file of the guest."""

    async def chunks() -> AsyncIterator[bytes]:
        yield data

    await guest.write(path, chunks())


async def get(guest: Guest, path: str) -> bytes | None:
    """Read a file of the guest; None if there is none."""
    with suppress(NotFound):
        async with guest.read(path) as chunks:
            return b"".join([chunk async for chunk in chunks])
    return None
