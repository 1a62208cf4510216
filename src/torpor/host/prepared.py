"""A machine that is loaded and stands still, waiting for a name: everything of a restore that needs no identity."""

from __future__ import annotations

import dataclasses
import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from torpor.errors import Conflict, Unsupported
from torpor.host.choice import ChooseDriver
from torpor.host.hardware import hardware_of
from torpor.kit.files import clone, remove_tree
from torpor.kit.owning import own
from torpor.kit.shielded import shielded
from torpor.model.template import Template
from torpor.storage.images import Images
from torpor.storage.layout import Layout
from torpor.storage.templates import DISK, MEMORY, STATE, Templates
from torpor.vmm.driver import Capabilities, Driver, Machine, Place, Saved


class Prepared:
    """A template's snapshot, loaded into a machine with a disk of its own in a place of its own."""

    def __init__(self, template: Template, place: Place) -> None:
        self.template, self.place = template, place
        self.machine: Machine
        self._owned = AsyncExitStack()

    async def load(self, vmm: Driver, images: Images, snapshot: Path) -> None:
        """Make the place and load the machine. If any step fails, what was opened is closed, last first."""
        async with AsyncExitStack() as undo:
            self.place.folder.mkdir(mode=0o700)
            undo.callback(self._remove_place)
            overlay = self.place.folder / DISK
            clone(snapshot / DISK, overlay)
            hardware, saved = hardware_of(images, self.template, overlay), Saved(snapshot / MEMORY, snapshot / STATE)
            self.machine = await own(undo, vmm.load(self.place, hardware, saved))
            self._owned = undo.pop_all()

    def settle(self, place: Place) -> None:
        """Take another place, which must not exist yet. Raises Conflict if it does."""
        if place.folder.exists():
            raise Conflict(f"the sandbox {place.name} is already on this host", seen="running", needed=["deleted"])
        self.place.folder.rename(place.folder)
        self.place = place
        self.machine.move(place)

    def _remove_place(self) -> None:
        remove_tree(self.place.folder)

    async def aclose(self) -> None:
        """End the machine and remove its place. Idempotent, and not cut short by cancellation."""
        await shielded(self._owned.aclose())


@dataclass(frozen=True, slots=True)
class Preparer:
    """Prepares machines on this host."""

    layout: Layout
    images: Images
    templates: Templates
    vmm: ChooseDriver

    async def prepare(self, template: Template) -> Prepared:
        """Load a template's snapshot in a new place. If any step fails, what was opened is closed, last first.

        Raises Unsupported where the snapshot was made by another VMM, version, accelerator or CPU model; RestoreFailed.
        """
        vmm = await self.vmm()
        check_fingerprint(template, vmm.capabilities)
        name = f"spare-{secrets.token_hex(8)}"
        prepared = Prepared(template, Place(name, self.layout.sandboxes / name))
        await prepared.load(vmm, self.images, self.templates.path(template.name))
        return prepared


def check_fingerprint(template: Template, capabilities: Capabilities) -> None:
    """Refuse a snapshot that was made by another VMM, version, accelerator or CPU model, before anything starts."""
    for name, here in dataclasses.asdict(capabilities).items():
        there = getattr(template.fingerprint, name)
        if there != here:
            raise Unsupported(
                f"the template {template.name!r} was baked with {name} {there!r}, and this host has {here!r}",
                hint=f"run `torpor template build {template.name}`",
            )
