"""Keys and the audit log in the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, bindparam, delete, func, insert, literal, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.control.store.access import (
    MOST_KEYS,
    MOST_KEYS_OVER,
    AuditBounds,
    AuditListing,
    KeyClaim,
    other_key_request,
    too_many_keys,
)
from torpor.control.store.sql_part import SqlPart
from torpor.control.store.tables import UtcTime, audit, keys
from torpor.model.access import AuditEntry, AuditKind, Key, NewAuditEntry, Role
from torpor.model.ids import WorkspaceId


class SqlAccess(SqlPart):
    """The part of a store over SQLAlchemy that keeps keys and the audit log."""

    async def add_key(self, key: Key, now: datetime, claim: KeyClaim | None = None) -> Key:
        async def work(connection: AsyncConnection) -> Key:
            holder = await _holder(connection, claim) if claim is not None else None
            if holder is not None:
                return holder
            await _make_room(connection, key.workspace, now)
            await connection.execute(insert(keys).values(**_key_row(key, claim)))
            return key

        return await self._write(work)

    async def key_of(self, digest: str) -> Key | None:
        found = await self._keys(select(keys).where(keys.c.digest == digest))
        return found[0] if found else None

    async def key(self, key_id: str) -> Key | None:
        found = await self._keys(select(keys).where(keys.c.id == key_id))
        return found[0] if found else None

    async def keys(self, workspace: WorkspaceId) -> list[Key]:
        query = select(keys).where(keys.c.workspace == workspace)
        return await self._keys(query.order_by(keys.c.created_at.desc(), keys.c.id.desc()))

    async def revoke_key(self, key_id: str, at: datetime) -> Key | None:
        revoked = (
            update(keys)
            .where(keys.c.id == key_id)
            .values(revoked_at=func.coalesce(keys.c.revoked_at, literal(at, UtcTime)))
        )

        async def work(connection: AsyncConnection) -> Key | None:
            row = (await connection.execute(revoked.returning(keys))).one_or_none()
            return None if row is None else _to_key(row)

        return await self._write(work)

    async def note_keys_used(self, used: Mapping[str, datetime]) -> None:
        noted = update(keys).where(keys.c.id == bindparam("which")).values(last_used_at=bindparam("at"))

        async def work(connection: AsyncConnection) -> None:
            if used:
                await connection.execute(noted, [{"which": key_id, "at": at} for key_id, at in used.items()])

        await self._note(work)

    async def write_audit(self, entries: Sequence[NewAuditEntry], *, durably: bool) -> None:
        async def work(connection: AsyncConnection) -> None:
            if entries:
                await connection.execute(insert(audit), [_audit_row(entry) for entry in entries])

        await (self._write(work) if durably else self._note(work))

    async def audit(self, listing: AuditListing) -> list[AuditEntry]:
        async def work(connection: AsyncConnection) -> list[AuditEntry]:
            return [_to_entry(row) for row in await connection.execute(audit_page(listing))]

        return await self._read(work)

    async def trim_audit(self, bounds: AuditBounds) -> int:
        async def work(connection: AsyncConnection) -> int:
            await connection.execute(delete(keys).where(_is_over(bounds.keys)))
            groups = (await connection.execute(select(audit.c.workspace, audit.c.kind).distinct())).all()
            dropped = 0
            for group in groups:
                dropped += await _trim(connection, group.workspace, AuditKind(group.kind), bounds)
            return dropped

        return await self._write(work)

    async def _keys(self, query: Select[Any]) -> list[Key]:
        async def work(connection: AsyncConnection) -> list[Key]:
            return [_to_key(row) for row in await connection.execute(query)]

        return await self._read(work)


def audit_page(listing: AuditListing) -> Select[Any]:
    """Return the question for a page of the audit log."""
    query = select(audit).limit(listing.limit)
    if listing.workspace is not None:
        query = query.where(audit.c.workspace == listing.workspace)
    if listing.kinds:
        query = query.where(audit.c.kind.in_([kind.value for kind in listing.kinds]))
    if listing.after is not None:
        beyond = audit.c.number > listing.after if listing.oldest_first else audit.c.number < listing.after
        query = query.where(beyond)
    return query.order_by(audit.c.number.asc() if listing.oldest_first else audit.c.number.desc())


async def _holder(connection: AsyncConnection, claim: KeyClaim) -> Key | None:
    row = (await connection.execute(select(keys).where(keys.c.claim == claim.name))).one_or_none()
    if row is None:
        return None
    if row.claim_digest != claim.digest:
        raise other_key_request(claim, _to_key(row))
    return _to_key(row)


async def _make_room(connection: AsyncConnection, workspace: WorkspaceId, now: datetime) -> None:
    mine, is_over = keys.c.workspace == workspace, _is_over(now)
    living = await connection.scalar(select(func.count()).select_from(keys).where(mine, ~is_over)) or 0
    if living >= MOST_KEYS:
        raise too_many_keys(workspace)
    over = select(keys.c.id).where(mine, is_over).order_by(keys.c.created_at.desc(), keys.c.id.desc())
    old = (await connection.scalars(over.offset(MOST_KEYS_OVER).limit(-1))).all()
    if old:
        await connection.execute(delete(keys).where(keys.c.id.in_(old)))


async def _trim(connection: AsyncConnection, workspace: str | None, kind: AuditKind, bounds: AuditBounds) -> int:
    group = and_(audit.c.workspace == workspace, audit.c.kind == kind.value)  # None becomes IS NULL
    last = select(audit.c.number).where(group).order_by(audit.c.number.desc()).offset(bounds.most(kind)).limit(1)
    too_many = audit.c.number <= (await connection.scalar(last) or 0)
    gone = await connection.execute(delete(audit).where(group, or_(too_many, audit.c.at < bounds.since(kind))))
    return gone.rowcount


def _is_over(now: datetime) -> ColumnElement[bool]:
    # Neither is null, so that the negation is what it says.
    never = literal(datetime.max.replace(tzinfo=UTC), UtcTime)
    ended_at = func.min(func.coalesce(keys.c.revoked_at, never), func.coalesce(keys.c.expires_at, never))
    return ended_at <= literal(now, UtcTime)


def _key_row(key: Key, claim: KeyClaim | None) -> dict[str, Any]:
    return {
        "id": key.id,
        "workspace": key.workspace,
        "name": key.name,
        "prefix": key.prefix,
        "digest": key.digest,
        "role": key.role.value,
        "created_at": key.created_at,
        "made_by": key.made_by,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "last_used_at": key.last_used_at,
        "claim": None if claim is None else claim.name,
        "claim_digest": None if claim is None else claim.digest,
    }


def _to_key(row: Row[Any]) -> Key:
    return Key(
        id=row.id,
        workspace=WorkspaceId(row.workspace),
        name=row.name,
        prefix=row.prefix,
        digest=row.digest,
        role=Role(row.role),
        created_at=row.created_at,
        made_by=row.made_by,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
    )


def _audit_row(entry: NewAuditEntry) -> dict[str, Any]:
    return {
        "at": entry.at,
        "kind": entry.kind.value,
        "workspace": entry.workspace,
        "request_id": entry.request_id,
        "key_id": entry.key_id,
        "key_prefix": entry.key_prefix,
        "client": entry.client,
        "action": entry.action,
        "targets": list(entry.targets),
        "status": entry.status,
        "count": entry.count,
    }


def _to_entry(row: Row[Any]) -> AuditEntry:
    return AuditEntry(
        at=row.at,
        kind=AuditKind(row.kind),
        workspace=None if row.workspace is None else WorkspaceId(row.workspace),
        request_id=row.request_id,
        key_id=row.key_id,
        key_prefix=row.key_prefix,
        client=row.client,
        action=row.action,
        targets=tuple(row.targets),
        status=row.status,
        count=row._mapping["count"],
        number=row.number,
    )
