"""The store over SQLAlchemy. SQLite in WAL mode: readers never wait, one writer at a time, each commit on the disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Executable,
    Select,
    Table,
    Update,
    and_,
    delete,
    event,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from torpor.control.store.contract import Claim, Facts, Listing, Position, SnapshotListing, SnapshotRecord
from torpor.control.store.rules import claim_is_free, name_taken, other_request
from torpor.control.store.tables import (
    IS_DELETED,
    IS_LIVING,
    IS_MORTAL,
    claims,
    labels,
    sandboxes,
    snapshots,
    to_row,
    to_sandbox,
    to_snapshot,
    to_snapshot_row,
)
from torpor.control.store.upgrade import upgrade
from torpor.errors import Failed
from torpor.kit.shielded import shielded
from torpor.model.ids import SandboxId, SnapshotId, WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox

_BUSY_TIMEOUT_S = 30

T = TypeVar("T")


async def open_store(path: Path) -> SqlStore:
    """Open, or make, the database at `path` and bring its schema forward.

    Raises Unsupported if the database is newer than this program, Failed if it is no database of ours.
    """
    _open_once(path)
    writer = _engine(path, readonly=False)
    try:
        with _translated(path):
            await upgrade(writer)
    except BaseException:
        await writer.dispose()
        raise
    return SqlStore(path, writer, _engine(path, readonly=True))


def _open_once(path: Path) -> None:
    # Where a file cannot be opened, aiosqlite's thread may outlive the event loop and then end with a traceback.
    try:
        sqlite3.connect(path).close()
    except sqlite3.Error as error:
        raise Failed(f"the database {path} could not be used: {error}") from error


class SqlStore:
    """A `Store` in one SQLite file; made by `open_store`."""

    def __init__(self, path: Path, writer: AsyncEngine, reader: AsyncEngine) -> None:
        self._path = path
        self._writer = writer
        self._reader = reader

    async def add(self, sandbox: Sandbox, claim: Claim | None = None) -> Sandbox:
        async def work(connection: AsyncConnection) -> Sandbox:
            holder = await _holder(connection, sandbox.workspace, claim) if claim is not None else None
            if holder is None:
                await _insert(connection, sandbox, claim)
                if sandbox.from_snapshot is not None:
                    return await _looked_back(connection, sandbox.id)
            return holder or sandbox

        try:
            return await self._write(work)
        except IntegrityError as error:
            raise name_taken(sandbox) from error

    async def claimed(self, workspace: WorkspaceId, claim: Claim) -> Sandbox | None:
        return await self._read(lambda connection: _holder(connection, workspace, claim))

    async def get(self, sandbox_id: SandboxId) -> Sandbox | None:
        found = await self._find(select(sandboxes).where(sandboxes.c.id == sandbox_id))
        return found[0] if found else None

    async def move(
        self, sandbox_id: SandboxId, seen: Collection[State], to: State, at: datetime, facts: Facts | None = None
    ) -> Sandbox | None:
        change = (
            update(sandboxes)
            .where(sandboxes.c.id == sandbox_id, sandboxes.c.state.in_([state.value for state in seen]))
            .values(state=to.value, changed_at=at, **(facts or {}))
        )

        async def work(connection: AsyncConnection) -> Sandbox | None:
            moved = await _changed(connection, change)
            if moved is None or facts is None or "from_snapshot" not in facts:
                return moved
            return await _looked_back(connection, sandbox_id)

        return await self._write(work)

    async def set_expiry(
        self, sandbox_id: SandboxId, expires_at: datetime | None, ttl_seconds: int | None
    ) -> Sandbox | None:
        ending = (State.DELETING.value, State.DELETED.value)
        return await self._change(
            update(sandboxes)
            .where(sandboxes.c.id == sandbox_id, sandboxes.c.state.not_in(ending))
            .values(expires_at=expires_at, ttl_seconds=ttl_seconds)
        )

    async def page(self, listing: Listing) -> list[Sandbox]:
        query = (
            select(sandboxes)
            .where(sandboxes.c.workspace == listing.workspace, IS_LIVING)
            .order_by(sandboxes.c.created_at.desc(), sandboxes.c.id.desc())
            .limit(listing.limit)
        )
        if listing.state is not None:
            query = query.where(sandboxes.c.state == listing.state.value)
        for key, value in listing.metadata.items():
            has_pair = and_(labels.c.sandbox_id == sandboxes.c.id, labels.c.key == key, labels.c.value == value)
            query = query.where(exists().where(has_pair))
        if listing.after is not None:
            query = query.where(_behind(sandboxes, listing.after))
        return await self._find(query)

    async def living(self) -> list[Sandbox]:
        return await self._find(select(sandboxes).where(IS_LIVING))

    async def due(self, now: datetime, limit: int) -> list[Sandbox]:
        query = select(sandboxes).where(IS_MORTAL, sandboxes.c.expires_at <= now)
        return await self._find(query.order_by(sandboxes.c.expires_at).limit(limit))

    async def next_expiry(self) -> datetime | None:
        query = select(func.min(sandboxes.c.expires_at)).where(IS_MORTAL)
        return await self._read(lambda connection: connection.scalar(query))

    async def forget(self, before: datetime) -> int:
        old = delete(sandboxes).where(IS_DELETED, sandboxes.c.changed_at < before)

        async def work(connection: AsyncConnection) -> int:
            return (await connection.execute(old)).rowcount

        return await self._write(work)

    async def add_snapshot(self, snapshot: SnapshotRecord) -> None:
        new = sqlite.insert(snapshots).values(**to_snapshot_row(snapshot)).on_conflict_do_nothing()
        await self._tell(new, _look_back(sandboxes.c.id == snapshot.sandbox))

    async def remove_snapshot(self, snapshot_id: SnapshotId) -> None:
        this_one = snapshots.c.id == snapshot_id

        async def work(connection: AsyncConnection) -> None:
            owner = await connection.scalar(select(snapshots.c.sandbox_id).where(this_one))
            await connection.execute(delete(snapshots).where(this_one))
            # Two statements, since each has an index of its own.
            await connection.execute(_look_back(sandboxes.c.id == owner))
            await connection.execute(_look_back(sandboxes.c.from_snapshot == snapshot_id))

        await self._write(work)

    async def snapshot(self, snapshot_id: SnapshotId) -> SnapshotRecord | None:
        found = await self._find_snapshots(select(snapshots).where(snapshots.c.id == snapshot_id))
        return found[0] if found else None

    async def snapshots(self, listing: SnapshotListing) -> list[SnapshotRecord]:
        query = select(snapshots).where(snapshots.c.workspace == listing.workspace).limit(listing.limit)
        if listing.sandbox is not None:
            query = query.where(snapshots.c.sandbox_id == listing.sandbox)
        if listing.after is not None:
            query = query.where(_behind(snapshots, listing.after))
        return await self._find_snapshots(query)

    async def snapshots_of(self, sandbox_id: SandboxId) -> list[SnapshotRecord]:
        return await self._find_snapshots(select(snapshots).where(snapshots.c.sandbox_id == sandbox_id))

    async def every_snapshot(self) -> list[SnapshotRecord]:
        return await self._find_snapshots(select(snapshots))

    async def aclose(self) -> None:
        await self._reader.dispose()
        await self._writer.dispose()

    async def _find(self, query: Select[Any]) -> list[Sandbox]:
        async def work(connection: AsyncConnection) -> list[Sandbox]:
            return [to_sandbox(row) for row in await connection.execute(query)]

        return await self._read(work)

    async def _find_snapshots(self, query: Select[Any]) -> list[SnapshotRecord]:
        newest_first = query.order_by(snapshots.c.created_at.desc(), snapshots.c.id.desc())

        async def work(connection: AsyncConnection) -> list[SnapshotRecord]:
            return [to_snapshot(row) for row in await connection.execute(newest_first)]

        return await self._read(work)

    async def _change(self, change: Update) -> Sandbox | None:
        return await self._write(lambda connection: _changed(connection, change))

    async def _tell(self, *changes: Executable) -> None:
        async def work(connection: AsyncConnection) -> None:
            for change in changes:
                await connection.execute(change)

        await self._write(work)

    async def _read(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        return await shielded(self._whole(self._reader.connect(), work))

    async def _write(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        return await shielded(self._whole(self._writer.begin(), work))

    async def _whole(
        self, opening: AbstractAsyncContextManager[AsyncConnection], work: Callable[[AsyncConnection], Awaitable[T]]
    ) -> T:
        # To be shielded always: a connection whose statement is given up runs on in its thread and, if it is the
        # writer, keeps everybody else from writing.
        with _translated(self._path):
            async with opening as connection:
                return await work(connection)


async def _changed(connection: AsyncConnection, change: Update) -> Sandbox | None:
    row = (await connection.execute(change.returning(sandboxes))).one_or_none()
    return None if row is None else to_sandbox(row)


async def _looked_back(connection: AsyncConnection, sandbox_id: SandboxId) -> Sandbox:
    """Find out a sandbox's last snapshot, in the transaction of what may have changed it, and return the sandbox."""
    return to_sandbox((await connection.execute(_look_back(sandboxes.c.id == sandbox_id).returning(sandboxes))).one())


def _look_back(condition: ColumnElement[bool]) -> Update:
    own = (
        select(snapshots.c.id)
        .where(snapshots.c.sandbox_id == sandboxes.c.id)
        .order_by(snapshots.c.created_at.desc(), snapshots.c.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    origin = select(snapshots.c.id).where(snapshots.c.id == sandboxes.c.from_snapshot).scalar_subquery()
    return update(sandboxes).where(condition).values(last_snapshot=func.coalesce(own, origin))


def _behind(table: Table, after: Position) -> ColumnElement[bool]:
    same_moment = and_(table.c.created_at == after.created_at, table.c.id < after.id)
    return or_(table.c.created_at < after.created_at, same_moment)


async def _holder(connection: AsyncConnection, workspace: WorkspaceId, claim: Claim) -> Sandbox | None:
    query = (
        select(claims.c.digest.label("claim_digest"), sandboxes)
        .join(sandboxes, sandboxes.c.id == claims.c.sandbox_id)
        .where(claims.c.workspace == workspace, claims.c.key == claim.key)
    )
    row = (await connection.execute(query)).one_or_none()
    if row is None or claim_is_free(holder := to_sandbox(row)):
        return None
    if row.claim_digest != claim.digest:
        raise other_request(claim, holder)
    return holder


async def _insert(connection: AsyncConnection, sandbox: Sandbox, claim: Claim | None) -> None:
    await connection.execute(insert(sandboxes).values(**to_row(sandbox)))
    if sandbox.metadata:
        pairs = [{"sandbox_id": sandbox.id, "key": key, "value": value} for key, value in sandbox.metadata.items()]
        await connection.execute(insert(labels), pairs)
    if claim is not None:
        held = and_(claims.c.workspace == sandbox.workspace, claims.c.key == claim.key)
        await connection.execute(delete(claims).where(held))
        row = {"workspace": sandbox.workspace, "key": claim.key, "digest": claim.digest, "sandbox_id": sandbox.id}
        await connection.execute(insert(claims).values(**row))


def _engine(path: Path, *, readonly: bool) -> AsyncEngine:
    # The driver's own isolation level is None: it would begin transactions late and only before some statements, so
    # `_begin` does it. Readers are in autocommit: one statement is one snapshot, without a transaction around it.
    engine = create_async_engine(
        f"sqlite+aiosqlite:///{path}",
        pool_size=2 if readonly else 1,
        max_overflow=0,
        pool_timeout=_BUSY_TIMEOUT_S,
        connect_args={"timeout": _BUSY_TIMEOUT_S, "isolation_level": None},
        **({"isolation_level": "AUTOCOMMIT", "skip_autocommit_rollback": True} if readonly else {}),
    )
    event.listen(engine.sync_engine, "connect", _prepare_reader if readonly else _prepare_writer)
    if not readonly:
        event.listen(engine.sync_engine, "begin", _begin)
    return engine


def _prepare_writer(connection: Any, _record: Any) -> None:
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _prepare_reader(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA query_only = ON").close()


def _begin(connection: Any) -> None:
    # Taking the write lock at once means waiting for it here, never failing half-way.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except IntegrityError:
        raise
    except SQLAlchemyError as error:
        reason = getattr(error, "orig", None) or error
        raise Failed(f"the database {path} could not be used: {reason}") from error
