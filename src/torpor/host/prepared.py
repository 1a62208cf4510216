"""A machine that is loaded and stands still, waiting for a name: everything of a restore that needs no identity."""

from __future__ import annotations

import dataclasses
import errno
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torpor.errors import OutOfSpace, RestoreFailed, Unsupported
from torpor.host.choice import ChooseDriver
from torpor.host.hardware import hardware_of
from torpor.kit.files import clone, remove_tree
from torpor.kit.shielded import shielded
from torpor.model.template import Fingerprint, Template
from torpor.storage.images import Images
from torpor.storage.layout import Layout
from torpor.storage.templates import DISK, MEMORY, STATE, Templates
from torpor.vmm.driver import Driver, Machine, Place, Saved


class Prepared:
    """A template's snapshot, loaded into a machine with a disk of its own in a place of its own."""

    def __init__(self, template: Template, place: Place, machine: Machine) -> None:
        self.template, self.place, self.machine = template, place, machine

    def settle(self, place: Place) -> None:
        """Take another place, where nothing is yet. Raises RestoreFailed if it cannot be taken."""
        with _translated():
            self.place.folder.rename(place.folder)
        self.place = place
        self.machine.move(place)

    async def aclose(self) -> None:
        """End the machine and remove its place. Idempotent, and not cut short by cancellation."""
        await shielded(self._end())

    async def _end(self) -> None:
        try:
            await self.machine.aclose()
        finally:
            remove_tree(self.place.folder)


@dataclass(frozen=True, slots=True)
class Preparer:
    """Prepares machines on this host."""

    layout: Layout
    images: Images
    templates: Templates
    vmm: ChooseDriver

    async def prepare(self, template: Template) -> Prepared:
        """Load a template's snapshot in a new place. If any step fails, nothing is left.

        Raises Unsupported where the snapshot was made by another VMM, version, accelerator or CPU model; OutOfSpace
        where the host's disk is full; RestoreFailed.
        """
        vmm = await self.vmm()
        check_fingerprint(template, vmm.fingerprint)
        name = f"spare-{secrets.token_hex(8)}"
        place = Place(name, self.layout.sandboxes / name)
        try:
            with _translated():
                place.folder.mkdir(mode=0o700)
                return Prepared(template, place, await self._load(vmm, template, place))
        except BaseException:
            remove_tree(place.folder)
            raise

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
