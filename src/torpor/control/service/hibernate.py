"""Hibernate: freeze a sandbox to disk and end its machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torpor.control.service.passage import reading_of
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, in_use, noticing_loss, show, standing
from torpor.control.service.snapshots import keep, tidy
from torpor.errors import Conflict
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


async def hibernate(plane: Plane, owned: Owned, is_wanted: Callable[[Sandbox], bool] | None = None) -> Asleep:
    """Put a running or paused sandbox to sleep; fine if it sleeps. `is_wanted`: as `Gate.passage`.

    If it definitely fails, the sandbox is as before. Raises NotFound, SandboxLost, Conflict, and what the host raises.
    """
    await standing(plane, owned)
    async with noticing_loss(plane, owned), plane.gate.passage(owned.id, HIBERNATE, is_wanted) as crossing:
        if not crossing.holds:
            order = host.Freeze(id=new_snapshot_id(), kind=Kind.HIBERNATION.value)
            frozen = await plane.host.hibernate(owned.id, order)
            crossing.reading = reading_of(frozen.usage)
            await keep(plane, crossing.sandbox, frozen)
    if not crossing.holds:
        await tidy(plane, owned.id)
    return Asleep(crossing.sandbox, await sleeps_in(plane, owned))


async def hibernate_asked(plane: Plane, owned: Owned, *, if_unused: bool = False) -> Asleep:
    """Put a sandbox to sleep because its owner says so, which is a use of it; as `hibernate`.

    With `if_unused` it is refused with a Conflict if any call is using it at that moment. Calls that come from then on
    wait until it sleeps, and wake it.
    """
    if not if_unused:
        async with in_use(plane, owned):
            return await hibernate(plane, owned)
    sandbox = await show(plane, owned)
    await plane.activity.wait_swept(owned.id)
    # No await from here to the mark: between a call and this, the call wins.
    with plane.activity.sweeping(owned.id) as is_unused:
        if not is_unused:
            message = f"sandbox {owned.id} is in use: {plane.activity.in_flight(owned.id)} calls are in flight"
            raise Conflict(message, seen=sandbox.state.value, hint="ask again when they have ended")
        done = await hibernate(plane, owned)
        plane.activity.touch(owned.id)
        return done


async def sleeps_in(plane: Plane, owned: Owned) -> SnapshotId | None:
    """Return the snapshot that a hibernated sandbox sleeps in, None if it has been deleted since."""
    of_kind = [one.id for one in await plane.store.snapshots_of(owned.id) if one.kind is Kind.HIBERNATION]
    return of_kind[0] if of_kind else None
