"""The noter: what happens in calls is noted at once and written down a moment later, so that no call waits for it."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from itertools import islice
from typing import Any, Protocol

import structlog

from torpor.control.store.contract import NewEvent, Store
from torpor.errors import TorporError
from torpor.kit.clock import Clock
from torpor.kit.news import News
from torpor.kit.shielded import shielded
from torpor.model.ids import SandboxId, WorkspaceId

_log = structlog.get_logger("torpor.control")

# What waits to be written; beyond it, what is new is dropped, and counted.
_MOST_WAITING = 10_000
_BATCH = 500
# A write that failed is tried again after this many seconds.
_RETRY_S = 1.0
# What of events may be secret: people write passwords on command lines.
COMMAND_TEXT = frozenset({"command"})


class Noted(Protocol):
    """Whom an event is about."""

    @property
    def workspace(self) -> WorkspaceId:
        """Whose it is."""

    @property
    def id(self) -> SandboxId:
        """Its name."""


class Noter:
    """Writes events down, in the order in which they were noted.

    What is noted is written by `write`, which runs beside everything else, or by `flush`, whichever comes first.
    `left_out`: data that no event is to have.
    """

    def __init__(self, store: Store, clock: Clock, news: News, *, left_out: frozenset[str] = frozenset()) -> None:
        self._left_out = left_out
        self._store = store
        self._clock = clock
        self._news = news
        self._waiting: deque[NewEvent] = deque()
        self._dropped = 0
        self._some = asyncio.Event()
        self._turn = asyncio.Lock()

    def note(self, type: str, sandbox: Noted, **data: Any) -> None:
        """Note that something happened to a sandbox just now. Waits for nothing, and never fails."""
        if len(self._waiting) >= _MOST_WAITING:
            self._dropped += 1
            return
        data = {name: value for name, value in data.items() if name not in self._left_out}
        told = json.loads(json.dumps(data, default=str))  # one that could not be written would hold up all others
        self._waiting.append(NewEvent(self._clock.now(), sandbox.workspace, sandbox.id, type, told))
        self._some.set()

    async def write(self) -> None:
        """Write down what is noted, for ever. Ends by cancellation."""
        while True:
            await self._some.wait()
            try:
                await self.flush()
            except TorporError as error:
                _log.warning("events not written yet", waiting=len(self._waiting), error=error.message)
                await self._clock.sleep(_RETRY_S)

    async def flush(self) -> None:
        """Write down everything that was noted before. If that fails it is all kept, and Failed is raised."""
        await shielded(self._flushed())

    async def aclose(self) -> None:
        """Write down what is left; what cannot be written now is lost, and the log says so."""
        try:
            await self.flush()
        except TorporError as error:
            _log.warning("events lost", count=len(self._waiting), error=error.message)

    async def _flushed(self) -> None:
        async with self._turn:
            self._some.clear()
            while self._waiting:
                batch = list(islice(self._waiting, _BATCH))
                try:
                    await self._store.note(batch)
                except TorporError:
                    self._some.set()
                    raise
                for _ in batch:
                    self._waiting.popleft()
                self._news.ring()
            if self._dropped:
                _log.warning("events dropped: more happened than could be written", count=self._dropped)
                self._dropped = 0
