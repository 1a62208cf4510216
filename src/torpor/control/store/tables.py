"""The tables of the control plane's database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

# The newest revision in migrations/versions.
SCHEMA_VERSION = "0007"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UtcTime(TypeDecorator[datetime]):
    """An aware time as microseconds since 1970: exact, sortable, and the same in every database."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        return None if value is None else (value - _EPOCH) // timedelta(microseconds=1)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else _EPOCH + timedelta(microseconds=value)


# What a sandbox may reach, as it is written: the fields of `model.network.Egress`.
NO_NETWORK = '{"mode": "none", "cidrs": [], "names": []}'

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
    Column("idle_timeout_seconds", Integer),
    Column("on_idle", String(16), nullable=False, server_default="hibernate"),
    Column("on_crash", String(16), nullable=False, server_default="fail"),
    Column("checkpoint_every_seconds", Integer),
    Column("checkpoint_every_execs", Integer),
    Column("checkpoint_keep", Integer, nullable=False, server_default="3"),
    Column("network", JSON, nullable=False, server_default=NO_NETWORK),
    Column("guest_ip", String(64)),
    Column("secret_names", JSON, nullable=False, server_default="[]"),
    Column("has_own_secrets", Boolean, nullable=False, server_default="0"),
    Column("volumes", JSON, nullable=False, server_default="[]"),
)

# The conditions of the indices. Queries use these very texts: SQLite takes a partial index only where it can see that
# the query's condition is the index's own, which it cannot if a state is a bound parameter.
IS_LIVING = text("state <> 'deleted'")
IS_DELETED = text("state = 'deleted'")
IS_MORTAL = text("state IN ('running', 'paused', 'hibernated', 'failed') AND expires_at IS NOT NULL")
_HAS_ORIGIN = text("from_snapshot IS NOT NULL")
HAS_VOLUMES = text("volumes <> '[]' AND state <> 'deleted'")
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

Index(
    "sandboxes_volumes",
    sandboxes.c.workspace,
    sqlite_where=HAS_VOLUMES,
    postgresql_where=HAS_VOLUMES,
)

volumes = Table(
    "volumes",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("workspace", String(64), nullable=False),
    Column("name", String(64), nullable=False),
    Column("size_mb", BigInteger, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("ready", Boolean, nullable=False),
)
Index("volumes_name", volumes.c.workspace, volumes.c.name, unique=True)

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
    Column("network", JSON, nullable=False, server_default=NO_NETWORK),
    Column("secret_names", JSON, nullable=False, server_default="[]"),
    Column("volumes", JSON, nullable=False, server_default="[]"),
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

# The ledger. What is not open any more is never written again. `mark_...`: the last reading that went into a ledger.
intervals = Table(
    "intervals",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("sandbox_id", String(64), ForeignKey("sandboxes.id", ondelete="CASCADE"), nullable=False),
    Column("state", String(16), nullable=False),
    Column("began_at", UtcTime, nullable=False),
    Column("ended_at", UtcTime, nullable=False),
    Column("is_open", Boolean, nullable=False),
    Column("cpu_seconds", Float, nullable=False),
    Column("resident_byte_seconds", Float, nullable=False),
    Column("disk_bytes", BigInteger, nullable=False),
    Column("mark_cpu_seconds", Float, nullable=False),
    Column("mark_resident_byte_seconds", Float, nullable=False),
)
IS_OPEN = text("is_open = 1")
Index("intervals_sandbox", intervals.c.sandbox_id, intervals.c.began_at, intervals.c.id)
# It also keeps a second one from being opened.
Index("intervals_open", intervals.c.sandbox_id, unique=True, sqlite_where=IS_OPEN, postgresql_where=IS_OPEN)

# No number is used twice, also if the newest events are dropped: somebody may have seen it.
events = Table(
    "events",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("at", UtcTime, nullable=False),
    Column("workspace", String(64), nullable=False),
    Column("sandbox_id", String(64), nullable=False),
    Column("type", String(32), nullable=False),
    Column("data", JSON, nullable=False),
    sqlite_autoincrement=True,
)
Index("events_sandbox", events.c.sandbox_id, events.c.number)
Index("events_at", events.c.at)

# Never a key itself: `digest` is its SHA-256. A random key of 256 bits cannot be guessed, so a slow hash would protect
# nothing, and would cost every request its time.
keys = Table(
    "keys",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("workspace", String(64), nullable=False),
    Column("name", String(128), nullable=False),
    Column("prefix", String(16), nullable=False),
    Column("digest", String(64), nullable=False, unique=True),
    Column("role", String(16), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("made_by", String(16), nullable=False),
    Column("expires_at", UtcTime),
    Column("revoked_at", UtcTime),
    Column("last_used_at", UtcTime),
    Column("claim", String(512), unique=True),
    Column("claim_digest", String(64)),
)
Index("keys_workspace", keys.c.workspace, keys.c.created_at, keys.c.id)

# What was done, and by whom. It is only ever appended to, and trimmed at its beginning.
audit = Table(
    "audit",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("at", UtcTime, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("workspace", String(64)),
    Column("request_id", String(64), nullable=False),
    Column("key_id", String(64)),
    Column("key_prefix", String(16)),
    Column("client", String(64), nullable=False),
    Column("action", String(256), nullable=False),
    Column("targets", JSON, nullable=False),
    Column("status", Integer),
    Column("count", Integer, nullable=False),
    sqlite_autoincrement=True,
)
Index("audit_workspace", audit.c.workspace, audit.c.number)
Index("audit_kind", audit.c.workspace, audit.c.kind, audit.c.number)
Index("audit_age", audit.c.workspace, audit.c.kind, audit.c.at)

# `order`: what the host is told, until the build has ended; it may hold what a Dockerfile is given in secret.
builds = Table(
    "builds",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("workspace", String(64), nullable=False),
    Column("name", String(64), nullable=False),
    Column("is_global", Boolean, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("order", Text),
    Column("has_files", Boolean, nullable=False),
    Column("image_ref", String(512)),
    Column("size_mb", BigInteger),
    Column("status", String(16), nullable=False),
    Column("error", Text),
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    Column("bytes", BigInteger),
    Column("claim", String(512), unique=True),
    Column("claim_digest", String(64)),
)
IS_OPEN_BUILD = text("ended_at IS NULL")
Index("builds_listing", builds.c.workspace, builds.c.created_at, builds.c.id)
Index("builds_open", builds.c.created_at, builds.c.id, sqlite_where=IS_OPEN_BUILD, postgresql_where=IS_OPEN_BUILD)

build_lines = Table(
    "build_lines",
    metadata,
    Column("build_id", String(64), ForeignKey("builds.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("text", Text, nullable=False),
)

# Templates that belong to workspaces. Those that are everybody's are the host's own, by their own names.
templates = Table(
    "templates",
    metadata,
    Column("workspace", String(64), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("host_name", String(64), nullable=False),
    Column("origin", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
)
