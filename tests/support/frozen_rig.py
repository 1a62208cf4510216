"""What tests of freezing and restoring on a fake VMM share."""

from __future__ import annotations

from host_rig import HostRig
from torpor.host.flow.freeze import FreezeOrder
from torpor.host.flow.snapshot import snapshot
from torpor.model.ids import SandboxId, SnapshotId, new_snapshot_id
from torpor.model.snapshot import Kind

# A file in the guest by which its states are told apart.
NOTE = "/work/note"


def order(kind: Kind = Kind.CHECKPOINT) -> FreezeOrder:
    """Return the order for a new snapshot."""
    return FreezeOrder(new_snapshot_id(), kind)


async def take(rig: HostRig, sandbox: SandboxId) -> SnapshotId:
    """Take a checkpoint."""
    return (await snapshot(rig.host, sandbox, order())).id
