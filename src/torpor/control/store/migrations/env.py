"""Runs the revisions in `versions` on the connection that `control/store/upgrade.py` hands over."""

from __future__ import annotations

from alembic import context

from torpor.control.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
