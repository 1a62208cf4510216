"""What both stores decide in the same way, and say in the same words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from torpor.control.store.contract import Boundary, Claim, Horizons, NewEvent, SnapshotRecord
from torpor.errors import Conflict
from torpor.model.lifecycle import ROLLBACK, State
from torpor.model.sandbox import Sandbox
from torpor.model.usage import Interval, Reading

# How long what is over is remembered. docs/usage.md and docs/events.md tell of them.
KEEP_CLAIMS = timedelta(days=7)
KEEP_SANDBOXES = timedelta(days=400)
KEEP_EVENTS = timedelta(days=30)


def horizons_at(now: datetime) -> Horizons:
    """Return how far back what is remembered goes at a moment."""
    return Horizons(claims=now - KEEP_CLAIMS, sandboxes=now - KEEP_SANDBOXES, events=now - KEEP_EVENTS)


def claim_is_free(holder: Sandbox) -> bool:
    """Tell whether a claim's sandbox never came to be, so that the same key may try again."""
    return holder.state is State.DELETED and holder.boot_ms is None


def name_taken(sandbox: Sandbox) -> Conflict:
    """Return the refusal of a second sandbox with a name."""
    return Conflict(
        f"a sandbox named {sandbox.name!r} exists already", hint="choose another name, or delete that sandbox first"
    )


def other_request(claim: Claim, holder: Sandbox) -> Conflict:
    """Return the refusal of a key that came with another request before."""
    return Conflict(
        f"the idempotency key {claim.key!r} was used for another request, which made {holder.id}",
        hint="use a fresh key for each new request",
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """An interval as it is kept: with the last reading that went into it or into one before, its `mark`."""

    interval: Interval
    mark: Reading = field(default_factory=Reading)


def opened(state: State, at: datetime) -> Entry:
    """Return the first entry of a ledger."""
    return Entry(Interval(state, at, at, is_open=True))


def extended(entry: Entry, at: datetime, reading: Reading | None, taken_at: datetime | None = None) -> Entry:
    """Return an open entry brought up to a moment, never back, with what was used since the last reading.

    A reading of before what is known already (`taken_at`, or `at`) is a late one, and changes nothing.
    """
    interval = replace(entry.interval, ended_at=max(entry.interval.ended_at, at))
    if reading is None or (taken_at or at) < entry.interval.ended_at:
        return Entry(interval, entry.mark)
    cpu, cpu_mark = _since(entry.mark.cpu_seconds, reading.cpu_seconds)
    resident, resident_mark = _since(entry.mark.resident_byte_seconds, reading.resident_byte_seconds)
    counted = replace(
        interval,
        cpu_seconds=interval.cpu_seconds + cpu,
        resident_byte_seconds=interval.resident_byte_seconds + resident,
        disk_bytes=max(0, reading.disk_bytes),
    )
    return Entry(counted, replace(reading, cpu_seconds=cpu_mark, resident_byte_seconds=resident_mark))


def turned(entry: Entry, to: State, at: datetime, boundary: Boundary) -> tuple[Entry, Entry | None]:
    """Return an open entry closed where the state changed, and the open one that begins there, None after the end."""
    really = at if boundary.since is None else min(boundary.since, at)
    # What the change itself has brought is never late, even if the clock was set back.
    last = extended(entry, really, boundary.reading, max(at, entry.interval.ended_at))
    closed = replace(last, interval=replace(last.interval, is_open=False))
    if to is State.DELETED:
        return closed, None
    moment = closed.interval.ended_at
    return closed, Entry(Interval(to, moment, moment, is_open=True, disk_bytes=closed.interval.disk_bytes), closed.mark)


def _since(mark: float, now: float) -> tuple[float, float]:
    """Return what was used since a mark, and the mark to go on from.

    A reading a little lower is one that is a little old: a host agent that was killed goes on from what it had written
    down last. Then the mark stays. One that is much lower began anew, and so counts from zero. So it is never counted
    twice, and never less than nothing.
    """
    now = now if math.isfinite(now) and now > 0 else 0.0
    if now >= mark:
        return now - mark, now
    return (0.0, mark) if now >= mark / 2 else (now, now)


def created_event(sandbox: Sandbox) -> NewEvent:
    """Return the event of a sandbox that was recorded."""
    data = {"from": None, "to": sandbox.state.value, "verb": "create"}
    return NewEvent(sandbox.created_at, sandbox.workspace, sandbox.id, "state", data)


def moved_events(moved: Sandbox, was: State, at: datetime, verb: str | None) -> list[NewEvent]:
    """Return the events of a change of state: it, and a failure where that is what it is."""
    told: dict[str, dict[str, Any]] = {"state": {"from": was.value, "to": moved.state.value, "verb": verb}}
    if moved.reason is not None:
        told["state"]["reason"] = moved.reason
    if moved.state is State.FAILED and verb != ROLLBACK.verb:  # a rollback that fails leaves it as it was, failed
        told["failed"] = {"reason": moved.reason, "last_snapshot": moved.last_snapshot}
    return [NewEvent(at, moved.workspace, moved.id, name, data) for name, data in told.items()]


def snapshot_event(record: SnapshotRecord) -> NewEvent:
    """Return the event of a snapshot that was recorded."""
    data = {
        "snapshot_id": record.id,
        "kind": record.kind.value,
        "name": record.name,
        "size_bytes": record.size_bytes,
        "pause_ms": record.cost.pause_ms,
        "took_ms": record.cost.took_ms,
        "dirty_bytes": record.cost.dirty_bytes,
    }
    return NewEvent(record.created_at, record.workspace, record.sandbox, "checkpoint", data)
