"""Volumes, and which of them sandboxes and snapshots have.

A revision says what the schema was at its time, so it spells out its columns instead of using `tables.py`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "volumes",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("workspace", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("size_mb", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("ready", sa.Boolean, nullable=False),
    )
    op.create_index("volumes_name", "volumes", ["workspace", "name"], unique=True)
    for table in ("sandboxes", "snapshots"):
        op.add_column(table, sa.Column("volumes", sa.JSON, nullable=False, server_default="[]"))
    has_volumes = sa.text("volumes <> '[]' AND state <> 'deleted'")
    op.create_index(
        "sandboxes_volumes", "sandboxes", ["workspace"], sqlite_where=has_volumes, postgresql_where=has_volumes
    )
