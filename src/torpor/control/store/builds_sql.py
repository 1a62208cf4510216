"""Builds, their logs and workspaces' templates in the database."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, delete, func, insert, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.control.store.builds import MOST_ENDED, BuildClaim, other_build_request
from torpor.control.store.sql_part import SqlPart
from torpor.control.store.tables import IS_OPEN_BUILD, build_lines, builds, templates
from torpor.model.builds import UNDER_WAY, Build, LogLine, OwnTemplate, Status
from torpor.model.ids import BuildId, TemplateName, WorkspaceId


class SqlBuilds(SqlPart):
    """The part of a store over SQLAlchemy that keeps builds and what came of them."""

    async def add_build(self, build: Build, claim: BuildClaim | None = None) -> Build:
        async def work(connection: AsyncConnection) -> Build:
            holder = None if claim is None else await _holder(connection, build.workspace, claim)
            if holder is not None:
                return holder
            await _drop_old(connection, build.workspace)
            await connection.execute(insert(builds).values(**_row(build, claim)))
            return build

        return await self._write(work)

    async def is_build_claimed(self, workspace: WorkspaceId, key: str) -> bool:
        query = select(builds.c.id).where(builds.c.claim == _claim_name(workspace, key))
        return await self._read(lambda connection: connection.scalar(query)) is not None

    async def build(self, build_id: BuildId) -> Build | None:
        found = await self._builds(select(builds).where(builds.c.id == build_id))
        return found[0] if found else None

    async def builds(self, workspace: WorkspaceId) -> list[Build]:
        query = select(builds).where(builds.c.workspace == workspace)
        return await self._builds(query.order_by(builds.c.created_at.desc(), builds.c.id.desc()))

    async def open_builds(self) -> list[Build]:
        return await self._builds(select(builds).where(IS_OPEN_BUILD).order_by(builds.c.created_at, builds.c.id))

    async def served(self) -> dict[WorkspaceId, datetime]:
        began = func.max(builds.c.started_at, type_=builds.c.started_at.type)
        query = select(builds.c.workspace, began).where(builds.c.started_at.is_not(None)).group_by(builds.c.workspace)

        async def work(connection: AsyncConnection) -> dict[WorkspaceId, datetime]:
            return {WorkspaceId(row[0]): row[1] for row in await connection.execute(query)}

        return await self._read(work)

    async def move_build(
        self, build_id: BuildId, seen: Collection[Status], to: Status, at: datetime, error: str | None = None
    ) -> Build | None:
        facts: dict[str, Any] = {"status": to.value}
        if to is Status.RUNNING:
            facts |= {"started_at": at}
        elif to is Status.FAILED:
            facts |= {"ended_at": at, "error": error, "order": None}
        return await self._write(lambda connection: _moved(connection, build_id, seen, facts))

    async def finish_build(
        self, build_id: BuildId, at: datetime, bytes: int, template: OwnTemplate | None
    ) -> Build | None:
        facts = {"status": Status.DONE.value, "ended_at": at, "order": None, "bytes": bytes}

        async def work(connection: AsyncConnection) -> Build | None:
            moved = await _moved(connection, build_id, UNDER_WAY, facts)
            if moved is not None and template is not None:
                row = asdict(template)
                newest = sqlite.insert(templates).values(**row)
                await connection.execute(newest.on_conflict_do_update(index_elements=["workspace", "name"], set_=row))
            return moved

        return await self._write(work)

    async def add_lines(self, build_id: BuildId, lines: Sequence[LogLine], keep_from: int) -> None:
        rows = [{"build_id": build_id, **asdict(line)} for line in lines]
        too_old = delete(build_lines).where(build_lines.c.build_id == build_id, build_lines.c.number < keep_from)

        async def work(connection: AsyncConnection) -> None:
            if rows and await connection.scalar(select(builds.c.id).where(builds.c.id == build_id)) is not None:
                await connection.execute(insert(build_lines), rows)
            await connection.execute(too_old)

        await self._note(work)

    async def lines(self, build_id: BuildId, after: int, limit: int) -> list[LogLine]:
        query = select(build_lines).where(build_lines.c.build_id == build_id, build_lines.c.number > after)

        async def work(connection: AsyncConnection) -> list[LogLine]:
            rows = await connection.execute(query.order_by(build_lines.c.number).limit(limit))
            return [LogLine(row.number, row.text) for row in rows]

        return await self._read(work)

    async def own_template(self, workspace: WorkspaceId, name: TemplateName) -> OwnTemplate | None:
        found = await self._templates(
            select(templates).where(templates.c.workspace == workspace, templates.c.name == name)
        )
        return found[0] if found else None

    async def own_templates(self, workspace: WorkspaceId | None) -> list[OwnTemplate]:
        query = select(templates).order_by(templates.c.name, templates.c.workspace)
        return await self._templates(query if workspace is None else query.where(templates.c.workspace == workspace))

    async def remove_own_template(self, workspace: WorkspaceId, name: TemplateName) -> OwnTemplate | None:
        gone = delete(templates).where(templates.c.workspace == workspace, templates.c.name == name)

        async def work(connection: AsyncConnection) -> OwnTemplate | None:
            row = (await connection.execute(gone.returning(templates))).one_or_none()
            return None if row is None else _to_template(row)

        return await self._write(work)

    async def _builds(self, query: Select[Any]) -> list[Build]:
        async def work(connection: AsyncConnection) -> list[Build]:
            return [_to_build(row) for row in await connection.execute(query)]

        return await self._read(work)

    async def _templates(self, query: Select[Any]) -> list[OwnTemplate]:
        async def work(connection: AsyncConnection) -> list[OwnTemplate]:
            return [_to_template(row) for row in await connection.execute(query)]

        return await self._read(work)


async def _holder(connection: AsyncConnection, workspace: WorkspaceId, claim: BuildClaim) -> Build | None:
    query = select(builds).where(builds.c.claim == _claim_name(workspace, claim.key))
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        return None
    if row.claim_digest != claim.digest:
        raise other_build_request(claim, BuildId(row.id))
    return _to_build(row)


async def _drop_old(connection: AsyncConnection, workspace: WorkspaceId) -> None:
    ended = select(builds.c.id).where(builds.c.workspace == workspace, builds.c.ended_at.is_not(None))
    newest_first = ended.order_by(builds.c.created_at.desc(), builds.c.id.desc())
    old = newest_first.limit(-1).offset(MOST_ENDED)
    await connection.execute(delete(builds).where(builds.c.id.in_(old)))


async def _moved(
    connection: AsyncConnection, build_id: BuildId, seen: Collection[Status], facts: dict[str, Any]
) -> Build | None:
    change = update(builds).where(builds.c.id == build_id, builds.c.status.in_([one.value for one in seen]))
    row = (await connection.execute(change.values(**facts).returning(builds))).one_or_none()
    return None if row is None else _to_build(row)


def _claim_name(workspace: WorkspaceId, key: str) -> str:
    return f"{workspace}:{key}"


def _row(build: Build, claim: BuildClaim | None) -> dict[str, Any]:
    held = {} if claim is None else {"claim": _claim_name(build.workspace, claim.key), "claim_digest": claim.digest}
    return {**asdict(build), "status": build.status.value, **held}


def _to_build(row: Row[Any]) -> Build:
    return Build(
        id=BuildId(row.id),
        workspace=WorkspaceId(row.workspace),
        name=TemplateName(row.name),
        is_global=row.is_global,
        kind=row.kind,
        created_at=row.created_at,
        order=row.order,
        has_files=row.has_files,
        image_ref=row.image_ref,
        size_mb=row.size_mb,
        status=Status(row.status),
        error=row.error,
        started_at=row.started_at,
        ended_at=row.ended_at,
        bytes=row.bytes,
    )


def _to_template(row: Row[Any]) -> OwnTemplate:
    return OwnTemplate(
        workspace=WorkspaceId(row.workspace),
        name=TemplateName(row.name),
        host_name=TemplateName(row.host_name),
        origin=row.origin,
        created_at=row.created_at,
    )
