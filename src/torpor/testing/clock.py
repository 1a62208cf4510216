"""A clock for tests: it stands still until it is told to jump."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from datetime import UTC, datetime, timedelta

# Turns of the event loop after a sleeper was woken, so that what it does next (its next sleep too) has been done.
_TURNS = 50


class JumpClock:
    """A `torpor.kit.clock.Clock` whose time passes only in `jump`. Sleepers wake in the order of their moments.

    `wait_sleepers` is the signal that a program has gone to sleep, so that a test need not guess.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._start = start or datetime(2030, 1, 1, tzinfo=UTC)
        self._passed = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._fell_asleep = asyncio.Condition()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._passed)

    def monotonic(self) -> float:
        return self._passed

    async def sleep(self, seconds: float) -> None:
        await self._sleep_to(self._passed + seconds)

    async def sleep_until(self, when: datetime) -> None:
        await self._sleep_to((when - self._start).total_seconds())

    async def jump(self, seconds: float) -> None:
        """Let `seconds` pass, waking each sleeper at its own moment, also those that fall asleep again on the way."""
        end = self._passed + seconds
        while True:
            await self._turn()
            self._sleepers = [entry for entry in self._sleepers if not entry[2].done()]
            heapq.heapify(self._sleepers)
            if not self._sleepers or self._sleepers[0][0] > end:
                break
            moment, _, sleeper = heapq.heappop(self._sleepers)
            self._passed = max(self._passed, moment)
            sleeper.set_result(None)
        self._passed = end

    async def wait_sleepers(self, count: int = 1) -> None:
        """Return when at least `count` sleeps are under way."""
        async with self._fell_asleep:
            await self._fell_asleep.wait_for(lambda: self.sleepers() >= count)

    def sleepers(self) -> int:
        """Return how many sleeps are under way."""
        return sum(1 for _, _, sleeper in self._sleepers if not sleeper.done())

    async def _sleep_to(self, moment: float) -> None:
        if moment <= self._passed:
            await asyncio.sleep(0)
            return
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (moment, next(self._order), sleeper))
        async with self._fell_asleep:
            self._fell_asleep.notify_all()
        await sleeper

    async def _turn(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
