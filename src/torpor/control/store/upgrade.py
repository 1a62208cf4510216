"""Brings a database's schema forward, and refuses one that this program does not know."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine

from torpor.control.store.tables import SCHEMA_VERSION
from torpor.errors import Failed, Unsupported

MIGRATIONS = Path(__file__).parent / "migrations"


async def upgrade(engine: AsyncEngine) -> None:
    """Bring the database to SCHEMA_VERSION, in one transaction. Raises Unsupported (newer), Failed (not ours)."""
    async with engine.begin() as connection:
        found = await connection.run_sync(_version)
        if found != SCHEMA_VERSION:
            await connection.run_sync(_migrate, found)


def _version(connection: Connection) -> str | None:
    tables = inspect(connection).get_table_names()
    if "alembic_version" in tables:
        found: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
        return found
    if tables:
        raise Failed("the database holds tables that are not Torpor's", hint="move the file away, or use another home")
    return None


def _migrate(connection: Connection, found: str | None) -> None:
    # Imported only where there is something to do: it is large, and the server lives long.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise Unsupported(
            f"the database has schema {found}, which is newer than this program's {SCHEMA_VERSION}",
            hint="start the newer version of Torpor, or use another home directory",
        )
    command.upgrade(config, SCHEMA_VERSION)
