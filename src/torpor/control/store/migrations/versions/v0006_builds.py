"""Builds of templates, their logs, and the templates that belong to workspaces.

A revision says what the schema was at its time, so it spells out its columns instead of using `tables.py`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _builds()
    _lines()
    _templates()


def _builds() -> None:
    op.create_table(
        "builds",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("workspace", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("is_global", sa.Boolean, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("order", sa.Text),
        sa.Column("has_files", sa.Boolean, nullable=False),
        sa.Column("image_ref", sa.String(512)),
        sa.Column("size_mb", sa.BigInteger),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("started_at", sa.BigInteger),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("bytes", sa.BigInteger),
        sa.Column("claim", sa.String(512), unique=True),
        sa.Column("claim_digest", sa.String(64)),
    )
    op.create_index("builds_listing", "builds", ["workspace", "created_at", "id"])
    is_open = sa.text("ended_at IS NULL")
    op.create_index("builds_open", "builds", ["created_at", "id"], sqlite_where=is_open, postgresql_where=is_open)


def _lines() -> None:
    op.create_table(
        "build_lines",
        sa.Column("build_id", sa.String(64), sa.ForeignKey("builds.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("text", sa.Text, nullable=False),
    )


def _templates() -> None:
    op.create_table(
        "templates",
        sa.Column("workspace", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("host_name", sa.String(64), nullable=False),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )
