"""What the server does for a sandbox of its own accord, the ledger, and events.

A revision says what the schema was at its time, so it spells out its columns instead of using `tables.py`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _care()
    _intervals()
    _events()


def _care() -> None:
    for name in ("idle_timeout_seconds", "checkpoint_every_seconds", "checkpoint_every_execs"):
        op.add_column("sandboxes", sa.Column(name, sa.Integer))
    op.add_column("sandboxes", sa.Column("on_idle", sa.String(16), nullable=False, server_default="hibernate"))
    op.add_column("sandboxes", sa.Column("on_crash", sa.String(16), nullable=False, server_default="fail"))
    op.add_column("sandboxes", sa.Column("checkpoint_keep", sa.Integer, nullable=False, server_default="3"))


def _intervals() -> None:
    op.create_table(
        "intervals",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("sandbox_id", sa.String(64), sa.ForeignKey("sandboxes.id", ondelete="CASCADE"), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("began_at", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger, nullable=False),
        sa.Column("is_open", sa.Boolean, nullable=False),
        sa.Column("cpu_seconds", sa.Float, nullable=False),
        sa.Column("resident_byte_seconds", sa.Float, nullable=False),
        sa.Column("disk_bytes", sa.BigInteger, nullable=False),
        sa.Column("mark_cpu_seconds", sa.Float, nullable=False),
        sa.Column("mark_resident_byte_seconds", sa.Float, nullable=False),
    )
    op.create_index("intervals_sandbox", "intervals", ["sandbox_id", "began_at", "id"])
    is_open = sa.text("is_open = 1")
    op.create_index(
        "intervals_open", "intervals", ["sandbox_id"], unique=True, sqlite_where=is_open, postgresql_where=is_open
    )
    # Nobody counted until now. What lives has been in its state since it came to it, and that is where counting begins.
    op.execute(
        "INSERT INTO intervals (sandbox_id, state, began_at, ended_at, is_open, cpu_seconds, resident_byte_seconds,"
        " disk_bytes, mark_cpu_seconds, mark_resident_byte_seconds)"
        " SELECT id, state, changed_at, changed_at, true, 0, 0, 0, 0, 0 FROM sandboxes WHERE state <> 'deleted'"
    )


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("workspace", sa.String(64), nullable=False),
        sa.Column("sandbox_id", sa.String(64), nullable=False),
        sa.Column("type", sa.String(32), nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("events_sandbox", "events", ["sandbox_id", "number"])
    op.create_index("events_at", "events", ["at"])
