"""What sandboxes may reach, and the names of the secrets they hold.

A revision says what the schema was at its time, so it spells out its columns instead of using `tables.py`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # What there is was made when no sandbox had a network, or secrets.
    none = '{"mode": "none", "cidrs": [], "names": []}'
    for table in ("sandboxes", "snapshots"):
        op.add_column(table, sa.Column("network", sa.JSON, nullable=False, server_default=none))
        op.add_column(table, sa.Column("secret_names", sa.JSON, nullable=False, server_default="[]"))
    op.add_column("sandboxes", sa.Column("guest_ip", sa.String(64)))
    op.add_column("sandboxes", sa.Column("has_own_secrets", sa.Boolean, nullable=False, server_default="0"))
