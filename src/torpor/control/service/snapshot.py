"""Snapshot: a durable checkpoint of a sandbox, which goes on."""

from __future__ import annotations

from torpor.control.service.claims import checked_key
from torpor.control.service.freeze import freeze
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, in_use, settled, standing
from torpor.control.store.contract import SnapshotRecord
from torpor.errors import Conflict
from torpor.model.ids import SnapshotId, new_snapshot_id, snapshot_id_from
from torpor.model.snapshot import Kind
from torpor.wire import host


async def snapshot(plane: Plane, owned: Owned, name: str | None, key: str | None = None) -> SnapshotRecord:
    """Take a checkpoint of a running or paused sandbox; with an idempotency key used before, return that of then.

    Raises InvalidRequest for a key that is none, NotFound, SandboxLost, Conflict (also for a key that came with another
    name before), QuotaExceeded, and what the host raises.
    """
    async with in_use(plane, owned):
        return await _taken(plane, owned, name, key)


async def _taken(plane: Plane, owned: Owned, name: str | None, key: str | None) -> SnapshotRecord:
    if key is None:
        await standing(plane, owned)
        return await _frozen(plane, owned, new_snapshot_id(), name)
    # The key is in the id, so the snapshot itself tells whether the request was served before.
    snapshot_id = snapshot_id_from(owned.workspace, owned.id, checked_key(key))
    await settled(plane, owned)
    record = await plane.store.snapshot(snapshot_id)
    if record is None:
        await standing(plane, owned)
        record = await _frozen(plane, owned, snapshot_id, name)
    if record.name != name:
        raise Conflict(
            f"the idempotency key {key!r} was used for another request, which made {record.id}",
            hint="use a fresh key for each new request",
        )
    return record


async def _frozen(plane: Plane, owned: Owned, snapshot_id: SnapshotId, name: str | None) -> SnapshotRecord:
    async with plane.quotas.adding_snapshot(owned.workspace, snapshot_id):
        return await freeze(plane, owned, host.Freeze(id=snapshot_id, kind=Kind.CHECKPOINT.value, name=name))
