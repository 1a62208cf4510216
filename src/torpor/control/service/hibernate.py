"""Hibernate: freeze a sandbox to disk and end its machine."""

from __future__ import annotations

from dataclasses import dataclass

from torpor.control.service.passage import reading_of
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, noticing_loss, standing
from torpor.control.service.snapshots import keep, tidy
from torpor.model.ids import SnapshotId, new_snapshot_id
from torpor.model.lifecycle import HIBERNATE
from torpor.model.sandbox import Sandbox
from torpor.model.snapshot import Kind
from torpor.wire import host


@dataclass(frozen=True, slots=True)
class Asleep:
    """A hibernated sandbox, and the snapshot it sleeps in (None: that has been deleted since)."""

    sandbox: Sandbox
    snapshot: SnapshotId | None


async def hibernate(plane: Plane, owned: Owned) -> Asleep:
    """Put a running or paused sandbox to sleep; fine if it sleeps.

    If it definitely fails, the sandbox is as before. Raises NotFound, SandboxLost, Conflict, and what the host raises.
    """
    await standing(plane, owned)
    async with noticing_loss(plane, owned), plane.gate.passage(owned.id, HIBERNATE) as crossing:
        if not crossing.holds:
            order = host.Freeze(id=new_snapshot_id(), kind=Kind.HIBERNATION.value)
            frozen = await plane.host.hibernate(owned.id, order)
            crossing.reading = reading_of(frozen.usage)
            await keep(plane, owned.workspace, frozen)
    if not crossing.holds:
        await tidy(plane, owned.id)
    return Asleep(crossing.sandbox, await sleeps_in(plane, owned))


async def sleeps_in(plane: Plane, owned: Owned) -> SnapshotId | None:
    """Return the snapshot that a hibernated sandbox sleeps in, None if it has been deleted since."""
    of_kind = [one.id for one in await plane.store.snapshots_of(owned.id) if one.kind is Kind.HIBERNATION]
    return of_kind[0] if of_kind else None
