"""rollback: restore a checkpoint under the sandbox's own identity, in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import structlog

from torpor.errors import Failed, RestoreFailed
from torpor.host.admission import need_of_living, need_of_machine
from torpor.host.flow.admit import admitted
from torpor.host.flow.restore import Birth, restore
from torpor.host.host import Host
from torpor.host.live import Incarnation, Sleeper, put_on_record
from torpor.host.metering import measure
from torpor.host.record import FORMER, NEXT, read_deadline, write_deadline
from torpor.host.trouble import translated
from torpor.host.unreachable import Unreachable
from torpor.host.volumes import take_back
from torpor.kit.faultpoints import reached
from torpor.kit.files import remove_tree
from torpor.kit.shielded import shielded
from torpor.model.identity import Identity
from torpor.model.ids import SandboxId, SnapshotId, VolumeId
from torpor.model.network import NO_NETWORK, Egress
from torpor.model.usage import Reading
from torpor.model.volume import copies
from torpor.vmm.driver import Place

_log = structlog.get_logger(__name__)
# What may have been in its place.
_Before = Incarnation | Sleeper | Unreachable


@dataclass(frozen=True, slots=True)
class Changes:
    """What is not to be as it was in the snapshot, or before.

    `secrets` take the place of those that the snapshot holds (None: it keeps them). `egress`: what it may reach from
    then on (None: what it was told last). `volumes`: of the volumes that the snapshot holds copies of, those that
    become what they were then; the others are copies of its own.
    """

    secrets: Mapping[str, str] | None = field(default=None, repr=False)
    egress: Egress | None = None
    volumes: frozenset[VolumeId] = frozenset()


_NO_CHANGES = Changes()


async def rollback(host: Host, sandbox: SandboxId, snapshot: SnapshotId, changes: Changes = _NO_CHANGES) -> Incarnation:
    """Let a sandbox be again as it was in a snapshot: running, paused, asleep, dead or not here at all.

    What it was is ended only once the snapshot lives; on error it is as before. Raises NotFound, SnapshotCorrupt,
    NoCapacity (for a while both are there), and what restoring raises.
    """
    async with host.live.lock(sandbox):
        return await shielded(_replace(host, sandbox, snapshot, changes))


async def _replace(host: Host, sandbox: SandboxId, snapshot: SnapshotId, changes: Changes) -> Incarnation:
    aside = _place(host, f"{NEXT}{sandbox}")
    frozen = await asyncio.to_thread(host.snapshots.open, snapshot)
    remove_tree(aside.folder)
    birth = replace(_birth(host, sandbox, changes), volumes=copies(frozen.volumes, changes.volumes))
    need = need_of_machine(frozen.template, birth.volumes)
    async with admitted(host, sandbox, need):  # beside what it was: both are there for a while
        incarnation = await restore(host.preparer.prepare(frozen, aside), birth)
        try:
            with translated(RestoreFailed, "the sandbox's place could not be taken"):
                before = _change_places(host, incarnation, sandbox)
        except BaseException:
            await incarnation.aclose()
            raise
        host.live.enter(incarnation)
    if before is not None:
        with host.admission.holding(need_of_living(before)):
            await _count_on(incarnation, before, birth.counted)
            await _end(before)
    return incarnation


async def _end(before: _Before) -> None:
    try:
        await before.aclose()
    except Failed as error:  # the sandbox is another one by now, whatever becomes of that
        _log.error("a machine that was replaced does not end", sandbox=before.id, error=error.message)


def _place(host: Host, name: str) -> Place:
    return Place(name, host.layout.sandboxes / name)


def _birth(host: Host, sandbox: SandboxId, changes: Changes) -> Birth:
    """Return who the incarnation in its place is, with what the sandbox has of deadline and usage."""
    birth = Birth(Identity(sandbox), secrets=changes.secrets, event="wake", egress=changes.egress or NO_NETWORK)
    before = host.live.whatever(sandbox)
    if before is None:
        return birth
    deadline, egress = read_deadline(before.place.folder), changes.egress or before.egress
    return replace(birth, deadline=deadline, counted=before.usage(), egress=egress)


async def _count_on(incarnation: Incarnation, before: _Before, counted: Reading) -> None:
    """Count in what the former incarnation has used since that was counted."""
    if isinstance(before, Incarnation):
        used = await measure(before)
        more_memory = used.resident_byte_seconds - counted.resident_byte_seconds
        incarnation.meter.add(used.cpu_seconds - counted.cpu_seconds, more_memory)
        try:
            put_on_record(incarnation)
        except OSError as error:
            _log.warning("what a sandbox used before it was rolled back is not noted", error=str(error))


def _change_places(host: Host, incarnation: Incarnation, sandbox: SandboxId) -> _Before | None:
    """Give the new incarnation the sandbox's place, and what was there another one; return that. All or nothing."""
    place, aside = _place(host, sandbox), incarnation.place
    before = host.live.whatever(sandbox)
    if before is None:
        remove_tree(place.folder)
        incarnation.settle(place)
        take_back(host.volumes, place.folder, incarnation.volumes)
        return None
    if (deadline := read_deadline(before.place.folder)) != read_deadline(incarnation.place.folder):
        write_deadline(incarnation.place.folder, deadline)  # another one was told since the new one was begun
    former = _place(host, f"{FORMER}{sandbox}")
    remove_tree(former.folder)
    before.settle(former)
    reached("rollback.aside")
    try:
        incarnation.settle(place)
        # Not before: from here on a crash leaves the new one in place, whose volumes are taken back at the next start.
        take_back(host.volumes, place.folder, incarnation.volumes)
    except BaseException:
        if incarnation.place == place:
            incarnation.settle(aside)
        before.settle(place)
        raise
    reached("rollback.replaced")
    return before
