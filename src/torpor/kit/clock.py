"""Time as a collaborator: what waits or stamps takes a Clock, so that tests can let hours pass in no time."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol

# The wall clock may be set while we sleep, so a sleep until a moment looks at it again this often.
_LONGEST_NAP_S = 30.0


class Clock(Protocol):
    """Tells the time and sleeps. Sleeps end early only by cancellation."""

    def now(self) -> datetime:
        """Return the wall-clock time, aware, in UTC."""

    def monotonic(self) -> float:
        """Return seconds since some fixed moment; never goes back, not even when the wall clock is set."""

    async def sleep(self, seconds: float) -> None:
        """Return when `seconds` of monotonic time have passed."""

    async def sleep_until(self, when: datetime) -> None:
        """Return when the wall clock reads `when` or later; at once if it does already."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def sleep_until(self, when: datetime) -> None:
        while (left := (when - self.now()).total_seconds()) > 0:  # noqa: ASYNC110 - the wall clock has no signal
            await asyncio.sleep(min(left, _LONGEST_NAP_S))
