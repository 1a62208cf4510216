"""The store over SQLAlchemy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Select, Update, and_, delete, func, insert, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from torpor.control.store import ledger
from torpor.control.store.access_sql import SqlAccess
from torpor.control.store.builds_sql import SqlBuilds
from torpor.control.store.contract import (
    Account,
    AccountListing,
    Boundary,
    Claim,
    Event,
    EventListing,
    Facts,
    Horizons,
    Listing,
    NewEvent,
    SnapshotListing,
    SnapshotRecord,
)
from torpor.control.store.engines import noting, open_once, reading, translated, writing
from torpor.control.store.rows import (
    to_event,
    to_holdings,
    to_interval,
    to_row,
    to_sandbox,
    to_snapshot,
    to_snapshot_row,
)
from torpor.control.store.rules import claim_is_free, name_taken, other_request, snapshot_event
from torpor.control.store.statements import (
    account_holders,
    events_of,
    forgetting,
    holdings_of,
    intervals_of,
    look_back,
    of_living_one,
    page_of,
    snapshots_of_page,
)
from torpor.control.store.tables import IS_LIVING, IS_MORTAL, claims, events, labels, sandboxes, snapshots
from torpor.control.store.upgrade import upgrade
from torpor.control.store.volumes_sql import SqlVolumes
from torpor.kit.shielded import shielded
from torpor.model.capacity import Holdings
from torpor.model.ids import SandboxId, SnapshotId, WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.network import Egress
from torpor.model.sandbox import Sandbox
from torpor.model.usage import Interval, Reading

T = TypeVar("T")

# So many events at most are noted before what was noted is made to outlive a loss of power.
UNSURE_AT_MOST = 1000
# Ids that go into one statement, and rows that are taken at once.
_IDS_AT_ONCE = 1000
_ROWS_AT_ONCE = 1000


async def open_store(path: Path) -> SqlStore:
    """Open, or make, the database at `path` and bring its schema forward.

    Raises Unsupported if the database is newer than this program, Failed if it is no database of ours.
    """
    open_once(path)
    writer = writing(path)
    try:
        with translated(path):
            await upgrade(writer)
            async with writer.begin() as connection:
                await ledger.skip_numbers(connection, 2 * UNSURE_AT_MOST)
    except BaseException:
        await writer.dispose()
        raise
    return SqlStore(path, writer)


class SqlStore(SqlBuilds, SqlVolumes, SqlAccess):
    """A `Store` in one SQLite file; made by `open_store`."""

    def __init__(self, path: Path, writer: AsyncEngine) -> None:
        self._path = path
        self._writer = writer
        self._noter = noting(path)
        self._reader = reading(path)
        # How many events may be lost with the machine's power by now.
        self._unsure = 0

    async def add(self, sandbox: Sandbox, claim: Claim | None = None) -> Sandbox:
        async def work(connection: AsyncConnection) -> Sandbox:
            holder = await _holder(connection, sandbox.workspace, claim) if claim is not None else None
            if holder is None:
                await _insert(connection, sandbox, claim)
                await ledger.begin(connection, sandbox)
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
        self,
        sandbox_id: SandboxId,
        seen: Collection[State],
        to: State,
        at: datetime,
        facts: Facts | None = None,
        boundary: Boundary | None = None,
    ) -> Sandbox | None:
        change = (
            update(sandboxes)
            .where(sandboxes.c.id == sandbox_id, sandboxes.c.state.in_([state.value for state in seen]))
            .values(state=to.value, changed_at=at, **(facts or {}))
        )

        async def work(connection: AsyncConnection) -> Sandbox | None:
            moved = await _changed(connection, change)
            if moved is None:
                return None
            await ledger.turn(connection, moved, at, boundary or Boundary())
            return await _looked_back(connection, sandbox_id) if facts and "from_snapshot" in facts else moved

        return await self._write(work)

    async def set_expiry(
        self, sandbox_id: SandboxId, expires_at: datetime | None, ttl_seconds: int | None
    ) -> Sandbox | None:
        change = of_living_one(sandbox_id).values(expires_at=expires_at, ttl_seconds=ttl_seconds)
        return await self._write(lambda connection: _changed(connection, change))

    async def relabel(
        self,
        sandbox_id: SandboxId,
        metadata: Mapping[str, str],
        expires_at: datetime | None,
        ttl_seconds: int | None,
    ) -> Sandbox | None:
        change = of_living_one(sandbox_id).values(
            metadata=dict(metadata), expires_at=expires_at, ttl_seconds=ttl_seconds
        )

        async def work(connection: AsyncConnection) -> Sandbox | None:
            changed = await _changed(connection, change)
            if changed is not None:
                await connection.execute(delete(labels).where(labels.c.sandbox_id == sandbox_id))
                await _label(connection, changed)
            return changed

        return await self._write(work)

    async def set_idle(self, sandbox_id: SandboxId, idle_timeout_seconds: int | None) -> Sandbox | None:
        change = of_living_one(sandbox_id).values(idle_timeout_seconds=idle_timeout_seconds)
        return await self._write(lambda connection: _changed(connection, change))

    async def set_network(self, sandbox_id: SandboxId, network: Egress, guest_ip: str | None) -> Sandbox | None:
        change = of_living_one(sandbox_id).values(network=asdict(network), guest_ip=guest_ip)
        return await self._write(lambda connection: _changed(connection, change))

    async def page(self, listing: Listing) -> list[Sandbox]:
        return await self._find(page_of(listing))

    async def holdings(self, workspace: WorkspaceId) -> Holdings:
        async def work(connection: AsyncConnection) -> Holdings:
            return to_holdings((await connection.execute(holdings_of(workspace))).one())

        return await self._read(work)

    async def living(self) -> list[Sandbox]:
        return await self._find(select(sandboxes).where(IS_LIVING))

    async def due(self, now: datetime, limit: int) -> list[Sandbox]:
        query = select(sandboxes).where(IS_MORTAL, sandboxes.c.expires_at <= now)
        return await self._find(query.order_by(sandboxes.c.expires_at).limit(limit))

    async def next_expiry(self, after: datetime) -> datetime | None:
        query = select(func.min(sandboxes.c.expires_at)).where(IS_MORTAL, sandboxes.c.expires_at > after)
        return await self._read(lambda connection: connection.scalar(query))

    async def forget(self, horizons: Horizons) -> int:
        async def work(connection: AsyncConnection) -> int:
            dropped = 0
            for change in forgetting(horizons):  # the sandboxes are the last
                dropped = (await connection.execute(change)).rowcount
            return dropped

        return await self._write(work)

    async def beat(self, at: datetime, readings: Mapping[SandboxId, Reading]) -> None:
        await self._write(lambda connection: ledger.beat(connection, at, readings))

    async def accounts(self, listing: AccountListing) -> list[Account]:
        async def work(connection: AsyncConnection) -> list[Account]:
            holders = (await connection.execute(account_holders(listing))).all()
            held: dict[str, list[Interval]] = {row.id: [] for row in holders}
            ids = list(held)
            for first in range(0, len(ids), _IDS_AT_ONCE):
                async with connection.stream(intervals_of(listing, ids[first : first + _IDS_AT_ONCE])) as rows:
                    async for part in rows.partitions(_ROWS_AT_ONCE):  # between parts, others have their turn
                        for row in part:
                            held[row.sandbox_id].append(to_interval(row))
            return [_account(row, held[row.id]) for row in holders]

        return await self._read(work)

    async def note(self, events: Sequence[NewEvent]) -> None:
        self._unsure += len(events)
        counted = self._unsure
        is_due = counted >= UNSURE_AT_MOST
        opening = (self._writer if is_due else self._noter).begin()
        await self._in(opening, lambda connection: ledger.write_events(connection, events))
        if is_due:  # it took to the disk what had been noted before it, too
            self._unsure -= counted

    async def events(self, listing: EventListing) -> list[Event]:
        async def work(connection: AsyncConnection) -> list[Event]:
            return [to_event(row) for row in await connection.execute(events_of(listing))]

        return await self._read(work)

    async def last_event(self) -> int:
        newest = select(func.max(events.c.number))
        return await self._read(lambda connection: connection.scalar(newest)) or 0

    async def add_snapshot(self, snapshot: SnapshotRecord) -> None:
        new = sqlite.insert(snapshots).values(**to_snapshot_row(snapshot)).on_conflict_do_nothing()

        async def work(connection: AsyncConnection) -> None:
            if (await connection.execute(new)).rowcount:
                await connection.execute(look_back(sandboxes.c.id == snapshot.sandbox))
                await ledger.write_events(connection, [snapshot_event(snapshot)])

        await self._write(work)

    async def remove_snapshot(self, snapshot_id: SnapshotId) -> None:
        this_one = snapshots.c.id == snapshot_id

        async def work(connection: AsyncConnection) -> None:
            owner = await connection.scalar(select(snapshots.c.sandbox_id).where(this_one))
            await connection.execute(delete(snapshots).where(this_one))
            # Two statements, since each has an index of its own.
            await connection.execute(look_back(sandboxes.c.id == owner))
            await connection.execute(look_back(sandboxes.c.from_snapshot == snapshot_id))

        await self._write(work)

    async def snapshot(self, snapshot_id: SnapshotId) -> SnapshotRecord | None:
        found = await self._find_snapshots(select(snapshots).where(snapshots.c.id == snapshot_id))
        return found[0] if found else None

    async def snapshots(self, listing: SnapshotListing) -> list[SnapshotRecord]:
        return await self._find_snapshots(snapshots_of_page(listing))

    async def snapshots_of(self, sandbox_id: SandboxId) -> list[SnapshotRecord]:
        return await self._find_snapshots(select(snapshots).where(snapshots.c.sandbox_id == sandbox_id))

    async def every_snapshot(self) -> list[SnapshotRecord]:
        return await self._find_snapshots(select(snapshots))

    async def aclose(self) -> None:
        await self._reader.dispose()
        await self._noter.dispose()
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

    async def _read(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        return await self._in(self._reader.connect(), work)

    async def _write(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        return await self._in(self._writer.begin(), work)

    async def _note(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        return await self._in(self._noter.begin(), work)

    async def _in(
        self, opening: AbstractAsyncContextManager[AsyncConnection], work: Callable[[AsyncConnection], Awaitable[T]]
    ) -> T:
        # Shielded always: a connection whose statement is given up runs on in its thread and, if it is a writer, keeps
        # everybody else from writing.
        return await shielded(self._whole(opening, work))

    async def _whole(
        self, opening: AbstractAsyncContextManager[AsyncConnection], work: Callable[[AsyncConnection], Awaitable[T]]
    ) -> T:
        with translated(self._path):
            async with opening as connection:
                return await work(connection)


async def _changed(connection: AsyncConnection, change: Update) -> Sandbox | None:
    row = (await connection.execute(change.returning(sandboxes))).one_or_none()
    return None if row is None else to_sandbox(row)


async def _looked_back(connection: AsyncConnection, sandbox_id: SandboxId) -> Sandbox:
    """Find out a sandbox's last snapshot, in the transaction of what may have changed it, and return the sandbox."""
    return to_sandbox((await connection.execute(look_back(sandboxes.c.id == sandbox_id).returning(sandboxes))).one())


def _account(row: Any, held: list[Interval]) -> Account:
    sandbox = to_sandbox(row)
    return Account(sandbox, row.changed_at if sandbox.state is State.DELETED else None, held)


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
    await _label(connection, sandbox)
    if claim is not None:
        held = and_(claims.c.workspace == sandbox.workspace, claims.c.key == claim.key)
        await connection.execute(delete(claims).where(held))
        row = {"workspace": sandbox.workspace, "key": claim.key, "digest": claim.digest, "sandbox_id": sandbox.id}
        await connection.execute(insert(claims).values(**row))


async def _label(connection: AsyncConnection, sandbox: Sandbox) -> None:
    """Write down the labels of a sandbox that has none written down, to find it by."""
    if sandbox.metadata:
        pairs = [{"sandbox_id": sandbox.id, "key": key, "value": value} for key, value in sandbox.metadata.items()]
        await connection.execute(insert(labels), pairs)
