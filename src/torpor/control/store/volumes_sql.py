"""Volumes in the database."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import Row, Select, delete, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.control.store.rows import to_sandbox
from torpor.control.store.sql_part import SqlPart
from torpor.control.store.tables import HAS_VOLUMES, sandboxes, volumes
from torpor.control.store.volumes import volume_name_taken
from torpor.model.ids import VolumeId, WorkspaceId
from torpor.model.sandbox import Sandbox
from torpor.model.volume import Volume


class SqlVolumes(SqlPart):
    """The part of a store over SQLAlchemy that keeps volumes."""

    async def add_volume(self, volume: Volume) -> None:
        new = insert(volumes).values(**asdict(volume))
        try:
            await self._write(lambda connection: connection.execute(new))
        except IntegrityError as error:
            raise volume_name_taken(volume) from error

    async def volume(self, workspace: WorkspaceId, name: str) -> Volume | None:
        found = await self._volumes(select(volumes).where(volumes.c.workspace == workspace, volumes.c.name == name))
        return found[0] if found else None

    async def volumes(self, workspace: WorkspaceId) -> list[Volume]:
        return await self._volumes(select(volumes).where(volumes.c.workspace == workspace).order_by(volumes.c.name))

    async def every_volume(self) -> list[Volume]:
        return await self._volumes(select(volumes))

    async def mark_volume(self, volume_id: VolumeId, *, ready: bool) -> None:
        change = update(volumes).where(volumes.c.id == volume_id).values(ready=ready)
        await self._write(lambda connection: connection.execute(change))

    async def remove_volume(self, volume_id: VolumeId) -> None:
        change = delete(volumes).where(volumes.c.id == volume_id)
        await self._write(lambda connection: connection.execute(change))

    async def with_volumes(self, workspace: WorkspaceId) -> list[Sandbox]:
        query = select(sandboxes).where(sandboxes.c.workspace == workspace, HAS_VOLUMES)

        async def work(connection: AsyncConnection) -> list[Sandbox]:
            return [to_sandbox(row) for row in await connection.execute(query)]

        return await self._read(work)

    async def _volumes(self, query: Select[Any]) -> list[Volume]:
        async def work(connection: AsyncConnection) -> list[Volume]:
            return [_volume(row) for row in await connection.execute(query)]

        return await self._read(work)


def _volume(row: Row[Any]) -> Volume:
    return Volume(
        id=VolumeId(row.id),
        workspace=WorkspaceId(row.workspace),
        name=row.name,
        size_mb=row.size_mb,
        created_at=row.created_at,
        ready=row.ready,
    )
