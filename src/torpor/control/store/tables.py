"""The tables of the control plane's database, and how rows become sandboxes and snapshots."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Row,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from torpor.control.store.contract import SnapshotRecord
from torpor.model.ids import SandboxId, SnapshotId, TemplateName, WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox
from torpor.model.snapshot import Cost, Kind

# The newest revision in migrations/versions.
SCHEMA_VERSION = "0002"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UtcTime(TypeDecorator[datetime]):
    """An aware time as microseconds since 1970: exact, sortable, and the same in every database."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        return None if value is None else (value - _EPOCH) // timedelta(microseconds=1)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else _EPOCH + timedelta(microseconds=value)


metadata = MetaData()

sandboxes = Table(
    "sandboxes",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("workspace", String(64), nullable=False),
    Column("template", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("changed_at", UtcTime, nullable=False),
    Column("cpu", Integer, nullable=False),
    Column("memory_mb", Integer, nullable=False),
    Column("disk_gb", Integer, nullable=False),
    Column("expires_at", UtcTime),
    Column("ttl_seconds", Integer),
    Column("name", String(64)),
    Column("metadata", JSON, nullable=False),
    Column("boot_ms", Integer),
    Column("reason", Text),
    Column("parent", String(64)),
    Column("from_snapshot", String(64)),
    Column("last_snapshot", String(64)),
)

# The conditions of the indices. Queries use these very texts: SQLite takes a partial index only where it can see that
# the query's condition is the index's own, which it cannot if a state is a bound parameter.
IS_LIVING = text("state <> 'deleted'")
IS_DELETED = text("state = 'deleted'")
IS_MORTAL = text("state IN ('running', 'paused', 'hibernated', 'failed') AND expires_at IS NOT NULL")
_HAS_ORIGIN = text("from_snapshot IS NOT NULL")
_IS_NAMED = text("name IS NOT NULL AND state <> 'deleted'")

# Each index serves one question, and leaves out the deleted, which are most rows after a while.
Index(
    "sandboxes_name",
    sandboxes.c.workspace,
    sandboxes.c.name,
    unique=True,
    sqlite_where=_IS_NAMED,
    postgresql_where=_IS_NAMED,
)
Index(
    "sandboxes_listing",
    sandboxes.c.workspace,
    sandboxes.c.created_at,
    sandboxes.c.id,
    sqlite_where=IS_LIVING,
    postgresql_where=IS_LIVING,
)
Index(
    "sandboxes_expiry",
    sandboxes.c.expires_at,
    sqlite_where=IS_MORTAL,
    postgresql_where=IS_MORTAL,
)
Index(
    "sandboxes_deleted",
    sandboxes.c.changed_at,
    sqlite_where=IS_DELETED,
    postgresql_where=IS_DELETED,
)

Index(
    "sandboxes_origin",
    sandboxes.c.from_snapshot,
    sqlite_where=_HAS_ORIGIN,
    postgresql_where=_HAS_ORIGIN,
)

# No foreign key to the sandbox: a checkpoint outlives it, and so does the id it is listed by.
snapshots = Table(
    "snapshots",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("workspace", String(64), nullable=False),
    Column("sandbox_id", String(64), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("name", String(128)),
    Column("template", String(64), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("cpu", Integer, nullable=False),
    Column("memory_mb", Integer, nullable=False),
    Column("disk_gb", Integer, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("parent_id", String(64)),
    Column("pause_ms", Float, nullable=False),
    Column("took_ms", Float, nullable=False),
    Column("dirty_bytes", BigInteger, nullable=False),
    Column("written_bytes", BigInteger, nullable=False),
)
Index("snapshots_listing", snapshots.c.workspace, snapshots.c.created_at, snapshots.c.id)
Index("snapshots_sandbox", snapshots.c.sandbox_id, snapshots.c.created_at, snapshots.c.id)

# The metadata once more, a pair a row, because a listing asks for pairs.
labels = Table(
    "labels",
    metadata,
    Column("sandbox_id", String(64), ForeignKey("sandboxes.id", ondelete="CASCADE"), primary_key=True),
    Column("key", String(128), primary_key=True),
    Column("value", Text, nullable=False),
)
Index("labels_pair", labels.c.key, labels.c.value)

claims = Table(
    "claims",
    metadata,
    Column("workspace", String(64), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("sandbox_id", String(64), ForeignKey("sandboxes.id", ondelete="CASCADE"), nullable=False),
)
Index("claims_sandbox", claims.c.sandbox_id)


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
    )


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
    )
