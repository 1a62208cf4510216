"""Freeze: a sandbox into a snapshot while it goes on, which is what a checkpoint and a fork have in common."""

from __future__ import annotations

from torpor.control.service.passage import reading_of
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, noticing_loss
from torpor.control.service.snapshots import keep
from torpor.control.store.contract import SnapshotRecord
from torpor.model.ids import SnapshotId
from torpor.model.lifecycle import SNAPSHOT
from torpor.wire import host


async def freeze(plane: Plane, owned: Owned, order: host.Freeze) -> SnapshotRecord:
    """Freeze a running or paused sandbox into a snapshot and return its record; the one of that id if there is one.

    If it definitely fails, nothing is left and the sandbox is as before. Raises Conflict, SandboxLost, and what the
    host raises.
    """
    async with noticing_loss(plane, owned), plane.gate.passage(owned.id, SNAPSHOT) as crossing:
        earlier = await plane.store.snapshot(SnapshotId(order.id))
        if earlier is not None:
            return earlier
        frozen = await plane.host.snapshot(owned.id, order)
        crossing.reading = reading_of(frozen.usage)
        return await keep(plane, crossing.sandbox, frozen)
