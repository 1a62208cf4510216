"""The ledger and the events of the store in memory."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime

from torpor.control.store.contract import AccountListing, Boundary, Event, EventListing, NewEvent
from torpor.control.store.rules import Entry, created_event, extended, moved_events, opened, turned
from torpor.model.ids import SandboxId
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox
from torpor.model.usage import Interval, Reading


class MemoryLedger:
    """The intervals of each sandbox, and the events of all, in the order in which they were written."""

    def __init__(self) -> None:
        self._entries: dict[SandboxId, list[Entry]] = {}
        self._events: list[Event] = []
        self._numbers = itertools.count(1)

    def begin(self, sandbox: Sandbox) -> None:
        """Open the ledger of a new sandbox."""
        if sandbox.state is not State.DELETED:
            self._entries[sandbox.id] = [opened(sandbox.state, sandbox.created_at)]
        self.note([created_event(sandbox)])

    def turn(self, moved: Sandbox, at: datetime, boundary: Boundary) -> None:
        """Close the open interval of a sandbox whose state has changed, and open the next."""
        entries = self._entries[moved.id]
        closed, following = turned(entries.pop(), moved.state, at, boundary)
        entries += [closed] if following is None else [closed, following]
        self.note(moved_events(moved, closed.interval.state, at, boundary.verb))

    def beat(self, at: datetime, readings: Mapping[SandboxId, Reading]) -> None:
        """Bring the open intervals of sandboxes up to a moment, with what was used."""
        for sandbox_id, reading in readings.items():
            entries = self._entries.get(sandbox_id)
            if entries and entries[-1].interval.is_open:
                entries.append(extended(entries.pop(), at, reading))

    def intervals(self, sandbox_id: SandboxId, listing: AccountListing) -> list[Interval]:
        """Return a sandbox's intervals between the bounds of a listing."""
        found = [entry.interval for entry in self._entries.get(sandbox_id, [])]
        begun = [one for one in found if listing.until is None or one.began_at < listing.until]
        return [one for one in begun if listing.since is None or one.is_open or one.ended_at > listing.since]

    def note(self, events: Sequence[NewEvent]) -> None:
        """Write events down."""
        self._events += [Event(**asdict(one), number=next(self._numbers)) for one in events]

    def events(self, listing: EventListing) -> list[Event]:
        """Return a page of events."""
        found = [one for one in self._events if one.number > listing.after and one.workspace == listing.workspace]
        of_one = [one for one in found if listing.sandbox in (None, one.sandbox)]
        return [one for one in of_one if not listing.types or one.type in listing.types][: listing.limit]

    def last_event(self) -> int:
        """Return the number of the newest event, 0 if there is none."""
        return self._events[-1].number if self._events else 0

    def forget(self, sandboxes: Collection[SandboxId], before: datetime) -> None:
        """Drop the ledgers of sandboxes, and events before a time."""
        for sandbox_id in sandboxes:
            self._entries.pop(sandbox_id, None)
        self._events = [event for event in self._events if event.at >= before]
