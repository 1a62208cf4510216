"""The auditor: writes down who did what. Changes are on the disk before they are answered; the rest a moment later."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice

import structlog

from torpor.control.service.rates import Rates
from torpor.control.store.access import AccessStore, AuditListing, bounds_at
from torpor.errors import TorporError, Unavailable
from torpor.kit.clock import Clock
from torpor.kit.shielded import shielded
from torpor.model.access import AuditEntry, AuditKind, NewAuditEntry

_log = structlog.get_logger("torpor.control")

# What waits to be written. Beyond it, changes are refused before they are made, and of the rest what is new is dropped.
_MOST_WAITING = 10_000
_BATCH = 500
_RETRY_S = 1.0
# Refusals that are told one by one; beyond it they are counted.
_REFUSALS_PER_S, _REFUSALS_AT_ONCE = 1.0, 60.0
MORE_REFUSALS = "(refusals that were only counted)"
_TRIM_EVERY_S = 3600.0


class Auditor:
    """Appends to the audit log, in the order in which it was told."""

    def __init__(self, store: AccessStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._waiting: deque[NewAuditEntry] = deque()
        # Entries are counted from the first on: how many were told, how many are written, up to which one has to be on
        # the disk at once.
        self._told = self._written = self._urgent = 0
        self._dropped = 0
        self._refusals = Rates(clock, _REFUSALS_PER_S, _REFUSALS_AT_ONCE)
        self._uncounted = 0
        self._some = asyncio.Event()
        self._turn = asyncio.Lock()

    def check_room(self) -> None:
        """Raise Unavailable while so much waits to be written that a change could not be told: it is not to be made."""
        if len(self._waiting) >= _MOST_WAITING:
            raise Unavailable("the audit log cannot be written now, so nothing is changed")

    def note(self, entry: NewAuditEntry) -> None:
        """Have something written down a moment later. Waits for nothing, and never fails."""
        if len(self._waiting) >= _MOST_WAITING:
            self._dropped += 1
            return
        self._append(entry)

    def note_refusal(self, entry: NewAuditEntry) -> None:
        """Note something that was refused at the door. Where they are many, they are counted."""
        if self._refusals.take(""):
            self._uncounted += 1
            return
        if self._uncounted:
            self.note(NewAuditEntry(entry.at, AuditKind.REFUSED, "", MORE_REFUSALS, "", None, count=self._uncounted))
            self._uncounted = 0
        self.note(entry)

    async def write_now(self, entry: NewAuditEntry) -> None:
        """Write something down, and return when it is on the disk.

        What cannot be written now is kept, and written when it can be: it has happened, whatever the log says.
        """
        self._append(entry)
        mine = self._urgent = self._told
        try:
            await shielded(self._flushed(mine))
        except TorporError as error:
            _log.error("audit entry not on the disk yet", request_id=entry.request_id, error=error.message)

    async def write(self) -> None:
        """Write down what is noted, for ever. Ends by cancellation."""
        while True:
            await self._some.wait()
            try:
                await self.flush()
            except TorporError as error:
                _log.warning("audit log not written yet", waiting=len(self._waiting), error=error.message)
                await self._clock.sleep(_RETRY_S)

    async def trim(self) -> None:
        """Drop what is kept for long enough, now and every hour. Ends by cancellation."""
        while True:
            try:
                if dropped := await self._store.trim_audit(bounds_at(self._clock.now())):
                    _log.info("audit log trimmed", entries=dropped)
            except TorporError as error:
                _log.warning("audit log not trimmed", error=error.message)
            await self._clock.sleep(_TRIM_EVERY_S)

    async def page(self, listing: AuditListing) -> list[AuditEntry]:
        """Return a page of the log, with all that was told before, if that could be written."""
        try:
            await self.flush()
        except TorporError as error:
            _log.warning("audit log not written yet", waiting=len(self._waiting), error=error.message)
        return await self._store.audit(listing)

    async def flush(self) -> None:
        """Write down everything that was told before. If that fails it is all kept, and Failed is raised."""
        await shielded(self._flushed(self._told))

    async def aclose(self) -> None:
        """Write down what is left; what cannot be written now is lost, and the log says so."""
        try:
            await self.flush()
        except TorporError as error:
            _log.error("audit entries lost", count=len(self._waiting), error=error.message)

    def _append(self, entry: NewAuditEntry) -> None:
        self._waiting.append(entry)
        self._told += 1
        self._some.set()

    async def _flushed(self, upto: int) -> None:
        """Write down what waits, up to the entry of that number at least. Who comes meanwhile is taken along."""
        async with self._turn:
            while self._written < upto:
                self._some.clear()
                batch = list(islice(self._waiting, _BATCH))
                try:
                    await self._store.write_audit(batch, durably=self._urgent > self._written)
                except TorporError:
                    self._some.set()
                    raise
                for _ in batch:
                    self._waiting.popleft()
                self._written += len(batch)
            if self._waiting:
                self._some.set()
            if self._dropped:
                _log.warning("audit entries dropped: more happened than could be written", count=self._dropped)
                self._dropped = 0
