"""How rows become sandboxes, snapshots, intervals and events, and these become rows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import Row

from torpor.control.store.contract import Event, NewEvent, SnapshotRecord
from torpor.control.store.rules import Entry
from torpor.model.capacity import GIB, MIB, Holdings
from torpor.model.ids import SandboxId, SnapshotId, TemplateName, WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.network import Egress, Mode
from torpor.model.sandbox import Care, OnCrash, OnIdle, Sandbox
from torpor.model.snapshot import Cost, Kind
from torpor.model.usage import Interval, Reading
from torpor.model.volume import Attachment


def to_row(sandbox: Sandbox) -> dict[str, Any]:
    """Return a sandbox as the columns of a new row."""
    return {
        "id": sandbox.id,
        "workspace": sandbox.workspace,
        "template": sandbox.template,
        "state": sandbox.state.value,
        "created_at": sandbox.created_at,
        "changed_at": sandbox.created_at,
        "cpu": sandbox.cpu,
        "memory_mb": sandbox.memory_mb,
        "disk_gb": sandbox.disk_gb,
        "expires_at": sandbox.expires_at,
        "ttl_seconds": sandbox.ttl_seconds,
        "name": sandbox.name,
        "metadata": dict(sandbox.metadata),
        "boot_ms": sandbox.boot_ms,
        "reason": sandbox.reason,
        "parent": sandbox.parent,
        "from_snapshot": sandbox.from_snapshot,
        "last_snapshot": sandbox.last_snapshot,
        "network": asdict(sandbox.network),
        "guest_ip": sandbox.guest_ip,
        "secret_names": list(sandbox.secret_names),
        "has_own_secrets": sandbox.has_own_secrets,
        "volumes": [asdict(each) for each in sandbox.volumes],
        **asdict(sandbox.care),
    }


def to_sandbox(row: Row[Any]) -> Sandbox:
    """Return a row as a sandbox."""
    return Sandbox(
        id=SandboxId(row.id),
        workspace=WorkspaceId(row.workspace),
        template=TemplateName(row.template),
        state=State(row.state),
        created_at=row.created_at,
        cpu=row.cpu,
        memory_mb=row.memory_mb,
        disk_gb=row.disk_gb,
        expires_at=row.expires_at,
        ttl_seconds=row.ttl_seconds,
        name=row.name,
        metadata=row._mapping["metadata"],
        boot_ms=row.boot_ms,
        reason=row.reason,
        parent=row.parent,
        from_snapshot=row.from_snapshot,
        last_snapshot=row.last_snapshot,
        care=Care(
            idle_timeout_seconds=row.idle_timeout_seconds,
            on_idle=OnIdle(row.on_idle),
            on_crash=OnCrash(row.on_crash),
            checkpoint_every_seconds=row.checkpoint_every_seconds,
            checkpoint_every_execs=row.checkpoint_every_execs,
            checkpoint_keep=row.checkpoint_keep,
        ),
        network=_egress(row.network),
        guest_ip=row.guest_ip,
        secret_names=tuple(row.secret_names),
        has_own_secrets=row.has_own_secrets,
        volumes=_attachments(row.volumes),
    )


def _egress(written: dict[str, Any]) -> Egress:
    return Egress(Mode(written["mode"]), tuple(written["cidrs"]), tuple(written["names"]))


def _attachments(written: list[dict[str, Any]]) -> tuple[Attachment, ...]:
    return tuple(Attachment(**each) for each in written)


def to_snapshot_row(snapshot: SnapshotRecord) -> dict[str, Any]:
    """Return a snapshot as the columns of a new row."""
    return {
        "id": snapshot.id,
        "workspace": snapshot.workspace,
        "sandbox_id": snapshot.sandbox,
        "kind": snapshot.kind.value,
        "name": snapshot.name,
        "template": snapshot.template,
        "created_at": snapshot.created_at,
        "cpu": snapshot.cpu,
        "memory_mb": snapshot.memory_mb,
        "disk_gb": snapshot.disk_gb,
        "size_bytes": snapshot.size_bytes,
        "parent_id": snapshot.parent,
        "network": asdict(snapshot.network),
        "secret_names": list(snapshot.secret_names),
        "volumes": [asdict(each) for each in snapshot.volumes],
        **asdict(snapshot.cost),
    }


def to_snapshot(row: Row[Any]) -> SnapshotRecord:
    """Return a row as a snapshot."""
    return SnapshotRecord(
        id=SnapshotId(row.id),
        workspace=WorkspaceId(row.workspace),
        sandbox=SandboxId(row.sandbox_id),
        kind=Kind(row.kind),
        template=TemplateName(row.template),
        created_at=row.created_at,
        cpu=row.cpu,
        memory_mb=row.memory_mb,
        disk_gb=row.disk_gb,
        name=row.name,
        parent=row.parent_id,
        size_bytes=row.size_bytes,
        cost=Cost(row.pause_ms, row.took_ms, row.dirty_bytes, row.written_bytes),
        network=_egress(row.network),
        secret_names=tuple(row.secret_names),
        volumes=_attachments(row.volumes),
    )


def to_interval_row(sandbox_id: SandboxId, entry: Entry) -> dict[str, Any]:
    """Return an entry of a sandbox's ledger as the columns of a row."""
    interval = entry.interval
    return {
        "sandbox_id": sandbox_id,
        "state": interval.state.value,
        "began_at": interval.began_at,
        "ended_at": interval.ended_at,
        "is_open": interval.is_open,
        "cpu_seconds": interval.cpu_seconds,
        "resident_byte_seconds": interval.resident_byte_seconds,
        "disk_bytes": interval.disk_bytes,
        "mark_cpu_seconds": entry.mark.cpu_seconds,
        "mark_resident_byte_seconds": entry.mark.resident_byte_seconds,
    }


def to_interval(row: Row[Any]) -> Interval:
    """Return a row as an interval."""
    return Interval(
        state=State(row.state),
        began_at=row.began_at,
        ended_at=row.ended_at,
        is_open=row.is_open,
        cpu_seconds=row.cpu_seconds,
        resident_byte_seconds=row.resident_byte_seconds,
        disk_bytes=row.disk_bytes,
    )


def to_entry(row: Row[Any]) -> Entry:
    """Return a row as an entry of a ledger."""
    return Entry(to_interval(row), Reading(row.mark_cpu_seconds, row.mark_resident_byte_seconds))


def to_event_row(new: NewEvent) -> dict[str, Any]:
    """Return an event as the columns of a new row."""
    return {
        "at": new.at,
        "workspace": new.workspace,
        "sandbox_id": new.sandbox,
        "type": new.type,
        "data": dict(new.data),
    }


def to_holdings(row: Row[Any]) -> Holdings:
    """Return the sums over what a workspace has."""
    return Holdings(
        row.sandboxes,
        row.memory_mib * MIB,
        row.disk_gib * GIB,
        row.snapshots,
        row.templates,
        row.builds,
        row.volumes,
        row.volume_mib * MIB,
    )


def to_event(row: Row[Any]) -> Event:
    """Return a row as an event."""
    return Event(
        at=row.at,
        workspace=WorkspaceId(row.workspace),
        sandbox=SandboxId(row.sandbox_id),
        type=row.type,
        data=row.data,
        number=row.number,
    )
