"""restore: a snapshot, brought to life as a running incarnation. One of the two hard operations."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from torpor.errors import Conflict, Unsupported
from torpor.host.hardware import hardware_of
from torpor.host.host import Host
from torpor.host.live import Incarnation
from torpor.kit.files import clone, remove_tree
from torpor.kit.owning import own
from torpor.model.identity import Identity
from torpor.model.ids import SandboxId
from torpor.model.template import Template
from torpor.storage.templates import DISK, MEMORY, STATE
from torpor.vmm.driver import Capabilities, Place, Saved


async def restore(host: Host, template: Template, identity: Identity, env: Mapping[str, str]) -> Incarnation:
    """Bring a snapshot to life under an identity. If any step fails, what was opened is closed, last first."""
    started = time.monotonic()
    vmm = await host.vmm()
    check_fingerprint(template, vmm.capabilities)
    async with AsyncExitStack() as undo:
        place = undo.enter_context(_place(host, identity.sandbox_id))
        snapshot = host.templates.path(template.name)
        hardware = hardware_of(host.images, template, _overlay(snapshot, place))
        machine = await own(undo, vmm.load(place, hardware, Saved(snapshot / MEMORY, snapshot / STATE)))
        guest = await own(undo, host.connect_guest(machine.open_channel()))
        await guest.adopt(identity)  # clock, entropy, hostname; acknowledged, else the restore fails
        boot_ms = round((time.monotonic() - started) * 1000)
        return Incarnation(identity.sandbox_id, template, place, machine, guest, dict(env), boot_ms, undo.pop_all())


def check_fingerprint(template: Template, capabilities: Capabilities) -> None:
    """Refuse a snapshot that was made by another VMM, version, accelerator or CPU model, before anything starts."""
    for name, here in dataclasses.asdict(capabilities).items():
        there = getattr(template.fingerprint, name)
        if there != here:
            raise Unsupported(
                f"the template {template.name!r} was baked with {name} {there!r}, and this host has {here!r}",
                hint=f"run `torpor template build {template.name}`",
            )


@contextmanager
def _place(host: Host, sandbox: SandboxId) -> Iterator[Place]:
    place = Place(sandbox, host.layout.sandboxes / sandbox)
    try:
        place.folder.mkdir(mode=0o700)
    except FileExistsError as error:
        raise Conflict(f"the sandbox {sandbox} is already on this host", seen="running", needed=["deleted"]) from error
    try:
        yield place
    finally:
        remove_tree(place.folder)


def _overlay(snapshot: Path, place: Place) -> Path:
    overlay = place.folder / DISK
    clone(snapshot / DISK, overlay)
    return overlay
