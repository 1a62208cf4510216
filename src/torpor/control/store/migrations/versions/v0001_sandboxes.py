"""Sandboxes, their labels, and idempotency claims.

A revision says what the schema was at its time, so it spells out its columns instead of using `tables.py`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _sandboxes()
    op.create_table(
        "labels",
        sa.Column("sandbox_id", sa.String(64), sa.ForeignKey("sandboxes.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("key", sa.String(128), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_index("labels_pair", "labels", ["key", "value"])
    op.create_table(
        "claims",
        sa.Column("workspace", sa.String(64), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("sandbox_id", sa.String(64), sa.ForeignKey("sandboxes.id", ondelete="CASCADE"), nullable=False),
    )
    op.create_index("claims_sandbox", "claims", ["sandbox_id"])


def _sandboxes() -> None:
    op.create_table(
        "sandboxes",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("workspace", sa.String(64), nullable=False),
        sa.Column("template", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.BigInteger, nullable=False),
        sa.Column("cpu", sa.Integer, nullable=False),
        sa.Column("memory_mb", sa.Integer, nullable=False),
        sa.Column("disk_gb", sa.Integer, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("ttl_seconds", sa.Integer),
        sa.Column("name", sa.String(64)),
        sa.Column("metadata", sa.JSON, nullable=False),
        sa.Column("boot_ms", sa.Integer),
        sa.Column("reason", sa.Text),
    )
    named = "name IS NOT NULL AND state <> 'deleted'"
    mortal = "state IN ('running', 'failed') AND expires_at IS NOT NULL"
    _partial_index("sandboxes_name", ["workspace", "name"], named, unique=True)
    _partial_index("sandboxes_listing", ["workspace", "created_at", "id"], "state <> 'deleted'")
    _partial_index("sandboxes_expiry", ["expires_at"], mortal)
    _partial_index("sandboxes_deleted", ["changed_at"], "state = 'deleted'")


def _partial_index(name: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(name, "sandboxes", columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
