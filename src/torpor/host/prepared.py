"""A machine that waits for a name: everything of a restore that needs no identity."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from torpor.errors import RestoreFailed, Unsupported
from torpor.guest.client import Guest
from torpor.host.choice import ChooseDriver
from torpor.host.hardware import hardware_of
from torpor.host.live import ConnectGuest, ended, moved
from torpor.host.network_notes import write_slot
from torpor.host.record import BASE
from torpor.host.sleep import clear
from torpor.host.trouble import translated
from torpor.host.volume_notes import volume_files
from torpor.kit.faultpoints import reached
from torpor.kit.files import clone, remove_tree
from torpor.kit.owning import own
from torpor.kit.shielded import shielded, wait_ended
from torpor.model.identity import NOBODY
from torpor.model.steps import SHELL
from torpor.model.template import Fingerprint
from torpor.network.absent import NoNetwork, Nowhere
from torpor.network.contract import Network, Slot
from torpor.storage.frozen import DISK, MEMORY, STATE, Frozen, link_parts, read_ahead, volume_part
from torpor.storage.frozen import read as read_frozen
from torpor.storage.images import Images
from torpor.storage.layout import Layout
from torpor.storage.volume import ensure_room
from torpor.vmm.driver import Driver, Machine, Place, Saved
from torpor.wire.host import ExecOrder

_PRACTICE_S = 10.0
_NO_PLACE = "no place for the machine could be made"


@dataclass
class Prepared:
    """A frozen guest, come to life in a place, with an agent that answers and has no name yet.

    `base`: what it came from, in its place. `slot`: its place in the network, with a closed gate. `lasting`: the place
    was there before and stays, with its base.
    """

    base: Frozen
    place: Place
    machine: Machine
    guest: Guest
    slot: Slot
    lasting: bool = False

    def settle(self, place: Place) -> None:
        """Take another place, where nothing is yet. Raises RestoreFailed if it cannot be taken."""
        with translated(RestoreFailed, _NO_PLACE):
            self.base = moved(self.base, self.place, place)
        self.place = place
        self.machine.move(place)

    async def stand_by(self) -> None:
        """Have the guest do once what it does when it is named, which is faster the second time, and stand still.

        Raises RestoreFailed, or SandboxLost if the machine has died.
        """
        await self.guest.adopt(NOBODY, thaw=not self.base.has_processes)
        await self.machine.pause()

    async def practise(self) -> None:
        """Have the guest run a command, so that the sandbox's first is as fast as later ones, and stand still again.

        One with processes of its own does not: they are not to run before they have their sandbox's identity.
        """
        if self.base.has_processes:
            return
        await self.machine.resume()
        await self.guest.run(ExecOrder(argv=[*SHELL, "true"], timeout_s=_PRACTICE_S))
        await self.machine.pause()

    async def aclose(self) -> None:
        """End the machine and remove what is its own. Idempotent, and not cut short by cancellation."""
        discard = partial(clear if self.lasting else remove_tree, self.place.folder)
        await shielded(ended(self.machine, self.guest, self.slot, discard))
        reached("restore.undone")


@dataclass(frozen=True, slots=True)
class Preparer:
    """Prepares machines on this host."""

    layout: Layout
    images: Images
    vmm: ChooseDriver
    connect_guest: ConnectGuest
    network: Network = field(default_factory=NoNetwork)

    async def prepare_ahead(self, frozen: Frozen, place: Place) -> Prepared:
        """Prepare a machine for later, which stands still. Raises as `prepare` does, and SandboxLost."""
        prepared = await self.prepare(frozen, place)
        try:
            await prepared.stand_by()
        except BaseException:
            await prepared.aclose()
            raise
        return prepared

    async def prepare(self, frozen: Frozen, place: Place) -> Prepared:
        """Bring what is frozen to life in a new place. If any step fails, what was opened is closed, last first.

        Raises Unsupported where it was frozen by another VMM, version, machine, accelerator or CPU model; OutOfSpace
        where the host's disk is full; RestoreFailed.
        """
        check_fingerprint(frozen, (await self.vmm()).fingerprint)
        async with AsyncExitStack() as undo:
            await asyncio.to_thread(ensure_room, self.layout, 0)
            with translated(RestoreFailed, _NO_PLACE):
                place.folder.mkdir(mode=0o700)
                undo.callback(remove_tree, place.folder)
                link_parts(frozen.folder, place.folder / BASE)
            base = read_frozen(place.folder / BASE)
            slot = await own(undo, self._slot_for(base))
            machine, guest = await self._start(undo, base, place, slot, None)
            undo.pop_all()
            return Prepared(base, place, machine, guest, slot)

    async def prepare_again(self, base: Frozen, place: Place, line: Guest | None) -> Prepared:
        """Bring a sandbox that sleeps to life in its own place; `line` is what waits for it, which it goes on with.

        If any step fails the place is as before. Raises as `prepare` does.
        """
        check_fingerprint(base, (await self.vmm()).fingerprint)
        async with AsyncExitStack() as undo:
            await asyncio.to_thread(ensure_room, self.layout, 0)
            undo.callback(clear, place.folder)
            slot = await own(undo, self._slot_for(base))
            machine, guest = await self._start(undo, base, place, slot, line)
            undo.pop_all()
            return Prepared(base, place, machine, guest, slot, lasting=True)

    async def _slot_for(self, base: Frozen) -> Slot:
        """Return a new slot; what was frozen without a network card has no use for one that leads anywhere."""
        return Nowhere() if base.template.mac is None else await self.network.take()

    async def _start(
        self, undo: AsyncExitStack, base: Frozen, place: Place, slot: Slot, line: Guest | None
    ) -> tuple[Machine, Guest]:
        vmm = await self.vmm()
        reading = asyncio.create_task(asyncio.to_thread(read_ahead, base))  # while the process starts
        try:
            machine = await own(undo, self._load(vmm, base, place, slot))
        finally:
            await wait_ended(reading)  # where this is cut short, the machine has an owner already
        reached("restore.loaded")
        # Connected before it runs: what a guest says while nobody is connected is thrown away.
        sock = machine.open_channel()
        if line is not None:
            await line.continue_on(sock)  # it is the line's from here on: whoever has the line ends it if this fails
            await machine.resume()
            return machine, line
        try:
            await machine.resume()
        except BaseException:
            sock.close()
            raise
        return machine, await own(undo, self.connect_guest(sock))

    async def _load(self, vmm: Driver, base: Frozen, place: Place, slot: Slot) -> Machine:
        overlay, volumes = place.folder / DISK, volume_files(place.folder, base.volumes)
        with translated(RestoreFailed, _NO_PLACE):
            clone(base.folder / DISK, overlay)
            for bay, file in enumerate(volumes):
                clone(base.folder / volume_part(bay), file)
            write_slot(place.folder, slot.name)  # so that the next host agent knows who has it
        hardware = hardware_of(self.images, base.template, overlay, volumes)
        tap = slot.open_tap()
        try:
            with translated(RestoreFailed, "the machine did not start"):
                return await vmm.load(place, hardware, Saved(base.folder / MEMORY, base.folder / STATE), tap)
        finally:
            if tap is not None:
                os.close(tap)


def check_fingerprint(frozen: Frozen, here: Fingerprint) -> None:
    """Refuse what was frozen by another VMM, version, machine, accelerator or CPU model, before anything starts."""
    for each in dataclasses.fields(Fingerprint):
        made_with, has = getattr(frozen.template.fingerprint, each.name), getattr(here, each.name)
        if made_with != has:
            raise Unsupported(
                f"{frozen.title} was made with {each.name} {made_with!r}, and this host has {has!r}", hint=frozen.mend
            )
