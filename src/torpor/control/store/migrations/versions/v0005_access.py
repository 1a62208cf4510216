"""Keys that are made on demand, and the audit log.

A revision says what the schema was at its time, so it spells out its columns instead of using `tables.py`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _keys()
    _audit()


def _keys() -> None:
    op.create_table(
        "keys",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("workspace", sa.String(64), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("made_by", sa.String(16), nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("revoked_at", sa.BigInteger),
        sa.Column("last_used_at", sa.BigInteger),
        sa.Column("claim", sa.String(512), unique=True),
        sa.Column("claim_digest", sa.String(64)),
    )
    op.create_index("keys_workspace", "keys", ["workspace", "created_at", "id"])


def _audit() -> None:
    op.create_table(
        "audit",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("workspace", sa.String(64)),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(64)),
        sa.Column("key_prefix", sa.String(16)),
        sa.Column("client", sa.String(64), nullable=False),
        sa.Column("action", sa.String(256), nullable=False),
        sa.Column("targets", sa.JSON, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("count", sa.Integer, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_workspace", "audit", ["workspace", "number"])
    op.create_index("audit_kind", "audit", ["workspace", "kind", "number"])
    op.create_index("audit_age", "audit", ["workspace", "kind", "at"])
