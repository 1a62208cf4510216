"""Rollback: let a sandbox be again as it was in a snapshot, under its own identity."""

from __future__ import annotations

from torpor.control.service.plane import Plane
from torpor.control.service.recovery import put_back
from torpor.control.service.sandboxes import Owned, in_use, settled
from torpor.control.service.snapshots import show_snapshot
from torpor.errors import Conflict
from torpor.model.sandbox import Sandbox


async def rollback(plane: Plane, owned: Owned, snapshot_id: str) -> Sandbox:
    """Put a sandbox back to a snapshot of its own, or to the one it was made from; it runs afterwards.

    Its name, metadata and end stay. If it definitely fails, it is as before. Raises NotFound, Conflict for another
    sandbox's snapshot, and what the host raises.
    """
    async with in_use(plane, owned):
        sandbox = await settled(plane, owned)
        record = await show_snapshot(plane, owned.workspace, snapshot_id)
        if record.sandbox != owned.id and record.id != sandbox.from_snapshot:
            raise Conflict(
                f"snapshot {record.id} is of sandbox {record.sandbox}, and {owned.id} can go back only to its own",
                hint="restore it as a new sandbox instead",
            )
        return await put_back(plane, owned.id, record)
