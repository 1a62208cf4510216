"""The ledger and the events in the database, inside the transaction of what they tell of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from torpor.control.store.contract import Boundary, NewEvent
from torpor.control.store.rows import to_entry, to_event_row, to_interval_row
from torpor.control.store.rules import Entry, created_event, extended, moved_events, opened, turned
from torpor.control.store.tables import IS_OPEN, UtcTime, events, intervals
from torpor.model.ids import SandboxId
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox
from torpor.model.usage import Reading

# Ids that go into one statement: SQLite takes no more than 32766.
_AT_ONCE = 10_000
_CHANGE = update(intervals).where(intervals.c.id == bindparam("which"))


async def begin(connection: AsyncConnection, sandbox: Sandbox) -> None:
    """Open the ledger of a new sandbox."""
    if sandbox.state is not State.DELETED:
        await _insert(connection, sandbox.id, opened(sandbox.state, sandbox.created_at))
    await write_events(connection, [created_event(sandbox)])


async def turn(connection: AsyncConnection, moved: Sandbox, at: datetime, boundary: Boundary) -> None:
    """Close the open interval of a sandbox whose state has changed, and open the next."""
    query = select(intervals).where(intervals.c.sandbox_id == moved.id, IS_OPEN)
    row = (await connection.execute(query)).one()
    closed, following = turned(to_entry(row), moved.state, at, boundary)
    await connection.execute(_CHANGE, _changed(row, closed))
    if following is not None:
        await _insert(connection, moved.id, following)
    await write_events(connection, moved_events(moved, closed.interval.state, at, boundary.verb))


async def beat(connection: AsyncConnection, at: datetime, readings: Mapping[SandboxId, Reading]) -> None:
    """Bring the open intervals of sandboxes up to a moment, with what was used."""
    until = func.max(intervals.c.ended_at, bindparam("at", type_=UtcTime))
    there = list(readings)
    for first in range(0, len(there), _AT_ONCE):
        these = intervals.c.sandbox_id.in_(there[first : first + _AT_ONCE])
        await connection.execute(update(intervals).where(IS_OPEN, these).values(ended_at=until), {"at": at})
    # Most of them sleep and use nothing, so few are left to be written.
    changes = []
    for row in (await connection.execute(select(intervals).where(IS_OPEN))).all():
        reading = readings.get(SandboxId(row.sandbox_id))
        before = to_entry(row)
        if reading is not None and (after := extended(before, at, reading)) != before:
            changes.append(_changed(row, after))
    if changes:
        await connection.execute(_CHANGE, changes)


async def write_events(connection: AsyncConnection, new: Sequence[NewEvent]) -> None:
    """Write events down."""
    if new:
        await connection.execute(insert(events), [to_event_row(one) for one in new])


async def skip_numbers(connection: AsyncConnection, count: int) -> None:
    """Use none of the next `count` numbers of events: they may have been told, and lost with the machine's power."""
    skipped = text("UPDATE sqlite_sequence SET seq = seq + :count WHERE name = :table")
    await connection.execute(skipped, {"count": count, "table": events.name})


async def _insert(connection: AsyncConnection, sandbox_id: SandboxId, entry: Entry) -> None:
    await connection.execute(insert(intervals).values(to_interval_row(sandbox_id, entry)))


def _changed(row: Row[Any], entry: Entry) -> dict[str, Any]:
    return {"which": row.id, **to_interval_row(row.sandbox_id, entry)}
