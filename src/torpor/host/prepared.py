"""A machine that waits for a name: everything of a restore that needs no identity."""

from __future__ import annotations

import dataclasses
import errno
import secrets
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

from torpor.errors import OutOfSpace, RestoreFailed, Unsupported
from torpor.guest.client import Guest
from torpor.host.choice import ChooseDriver
from torpor.host.hardware import hardware_of
from torpor.host.live import ConnectGuest
from torpor.kit.files import clone, remove_tree
from torpor.kit.owning import own
from torpor.kit.shielded import shielded
from torpor.model.identity import NOBODY
from torpor.model.template import Fingerprint, Template
from torpor.storage.images import Images
from torpor.storage.layout import Layout
from torpor.storage.templates import DISK, MEMORY, STATE, Templates
from torpor.vmm.driver import Driver, Machine, Place, Saved
from torpor.wire.host import ExecOrder

_PRACTICE_S = 10.0


@dataclass
class Prepared:
    """A template's snapshot, come to life in a place of its own, with a guest that answers and has no name yet."""

    template: Template
    place: Place
    machine: Machine
    guest: Guest

    def settle(self, place: Place) -> None:
        """Take another place, where nothing is yet. Raises RestoreFailed if it cannot be taken."""
        with _translated():
            self.place.folder.rename(place.folder)
        self.place = place
        self.machine.move(place)

    async def stand_by(self) -> None:
        """Have the guest do once what it does when it is named, which is faster the second time, and stand still.

        Raises RestoreFailed, or SandboxLost if the machine has died.
        """
        await self.guest.adopt(NOBODY)
        await self.machine.pause()

    async def practise(self) -> None:
        """Have the guest run a command, so that the sandbox's first is as fast as later ones, and stand still again."""
        await self.machine.resume()
        await self.guest.run(ExecOrder(argv=["/bin/sh", "-c", "true"], timeout_s=_PRACTICE_S))
        await self.machine.pause()

    async def aclose(self) -> None:
        """End the machine and remove its place. Idempotent, and not cut short by cancellation."""
        await shielded(self._end())

    async def _end(self) -> None:
        async with AsyncExitStack() as undo:
            undo.callback(remove_tree, self.place.folder)
            undo.push_async_callback(self.machine.aclose)
            undo.push_async_callback(self.guest.aclose)


@dataclass(frozen=True, slots=True)
class Preparer:
    """Prepares machines on this host."""

    layout: Layout
    images: Images
    templates: Templates
    vmm: ChooseDriver
    connect_guest: ConnectGuest

    async def prepare_ahead(self, template: Template) -> Prepared:
        """Prepare a machine for later, which stands still. Raises as `prepare` does, and SandboxLost."""
        prepared = await self.prepare(template)
        try:
            await prepared.stand_by()
        except BaseException:
            await prepared.aclose()
            raise
        return prepared

    async def prepare(self, template: Template) -> Prepared:
        """Bring a template's snapshot to life in a new place. If any step fails, what was opened is closed, last first.

        Raises Unsupported where the snapshot was made by another VMM, version, accelerator or CPU model; OutOfSpace
        where the host's disk is full; RestoreFailed.
        """
        vmm = await self.vmm()
        check_fingerprint(template, vmm.fingerprint)
        name = f"spare-{secrets.token_hex(8)}"
        place = Place(name, self.layout.sandboxes / name)
        async with AsyncExitStack() as undo:
            with _translated():
                place.folder.mkdir(mode=0o700)
                undo.callback(remove_tree, place.folder)
                machine = await own(undo, self._load(vmm, template, place))
            await machine.resume()
            guest = await own(undo, self.connect_guest(machine.open_channel()))
            undo.pop_all()
            return Prepared(template, place, machine, guest)

    async def _load(self, vmm: Driver, template: Template, place: Place) -> Machine:
        snapshot, overlay = self.templates.path(template.name), place.folder / DISK
        clone(snapshot / DISK, overlay)
        hardware = hardware_of(self.images, template, overlay)
        return await vmm.load(place, hardware, Saved(snapshot / MEMORY, snapshot / STATE))


@contextmanager
def _translated() -> Iterator[None]:
    """Raise what this host's file system says as OutOfSpace or RestoreFailed."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutOfSpace(
                "the host's disk is full", hint="free some of it; `torpor doctor` says how much"
            ) from error
        raise RestoreFailed(f"no place for the machine could be made: {error}") from error


def check_fingerprint(template: Template, here: Fingerprint) -> None:
    """Refuse a snapshot that was made by another VMM, version, accelerator or CPU model, before anything starts."""
    for field in dataclasses.fields(Fingerprint):
        baked_with, has = getattr(template.fingerprint, field.name), getattr(here, field.name)
        if baked_with != has:
            raise Unsupported(
                f"the template {template.name!r} was baked with {field.name} {baked_with!r}, and this host has {has!r}",
                hint=f"run `torpor template build {template.name}`",
            )
