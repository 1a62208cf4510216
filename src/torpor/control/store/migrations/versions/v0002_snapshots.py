"""Snapshots, where a sandbox came from, and what it can go back to.

A revision says what the schema was at its time, so it spells out its columns instead of using `tables.py`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("parent", "from_snapshot", "last_snapshot"):
        op.add_column("sandboxes", sa.Column(name, sa.String(64)))
    _partial_index("sandboxes_origin", ["from_snapshot"], "from_snapshot IS NOT NULL")
    # A sandbox that stands still or sleeps ends at its time too.
    op.drop_index("sandboxes_expiry", "sandboxes")
    mortal = "state IN ('running', 'paused', 'hibernated', 'failed') AND expires_at IS NOT NULL"
    _partial_index("sandboxes_expiry", ["expires_at"], mortal)
    _snapshots()


def _snapshots() -> None:
    op.create_table(
        "snapshots",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("workspace", sa.String(64), nullable=False),
        sa.Column("sandbox_id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.String(128)),
        sa.Column("template", sa.String(64), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("cpu", sa.Integer, nullable=False),
        sa.Column("memory_mb", sa.Integer, nullable=False),
        sa.Column("disk_gb", sa.Integer, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("parent_id", sa.String(64)),
        sa.Column("pause_ms", sa.Float, nullable=False),
        sa.Column("took_ms", sa.Float, nullable=False),
        sa.Column("dirty_bytes", sa.BigInteger, nullable=False),
        sa.Column("written_bytes", sa.BigInteger, nullable=False),
    )
    op.create_index("snapshots_listing", "snapshots", ["workspace", "created_at", "id"])
    op.create_index("snapshots_sandbox", "snapshots", ["sandbox_id", "created_at", "id"])


def _partial_index(name: str, columns: list[str], where: str) -> None:
    condition = sa.text(where)
    op.create_index(name, "sandboxes", columns, sqlite_where=condition, postgresql_where=condition)
