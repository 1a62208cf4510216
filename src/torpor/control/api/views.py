"""Records as clients see them."""

from __future__ import annotations

from torpor.control.store.contract import SnapshotRecord
from torpor.model.sandbox import Sandbox
from torpor.wire.public import Forked, Lifecycle, SandboxView, SnapshotView


def lifecycle_view(sandbox: Sandbox) -> Lifecycle:
    """Return how long a sandbox lives, as clients see it."""
    return Lifecycle(
        ttl_seconds=sandbox.ttl_seconds, persistent=sandbox.expires_at is None, expires_at=sandbox.expires_at
    )


def view(sandbox: Sandbox) -> SandboxView:
    """Return a sandbox as clients see it."""
    return SandboxView(
        id=sandbox.id,
        name=sandbox.name,
        template=sandbox.template,
        status=sandbox.state.value,
        cpu=sandbox.cpu,
        memory_mb=sandbox.memory_mb,
        disk_gb=sandbox.disk_gb,
        created_at=sandbox.created_at,
        expires_at=sandbox.expires_at,
        ttl_seconds=sandbox.ttl_seconds,
        persistent=sandbox.expires_at is None,
        metadata=dict(sandbox.metadata),
        from_snapshot=sandbox.from_snapshot,
        parent_id=sandbox.parent,
        last_snapshot_id=sandbox.last_snapshot,
        boot_ms=sandbox.boot_ms,
        reason=sandbox.reason,
    )


def snapshot_view(record: SnapshotRecord) -> SnapshotView:
    """Return a snapshot as clients see it."""
    return SnapshotView(
        id=record.id,
        sandbox_id=record.sandbox,
        kind=record.kind.value,
        name=record.name,
        template=record.template,
        created_at=record.created_at,
        cpu=record.cpu,
        memory_mb=record.memory_mb,
        disk_gb=record.disk_gb,
        size_bytes=record.size_bytes,
        parent_id=record.parent,
        pause_ms=record.cost.pause_ms,
        took_ms=record.cost.took_ms,
        dirty_bytes=record.cost.dirty_bytes,
        written_bytes=record.cost.written_bytes,
    )


def forked_view(parent_id: str, children: list[Sandbox]) -> Forked:
    """Return the children of one fork as clients see them."""
    first = children[0]
    return Forked(
        sandbox=view(first),
        children=[view(child) for child in children],
        parent_id=parent_id,
        snapshot_id=first.from_snapshot,
        at=first.created_at,
    )
