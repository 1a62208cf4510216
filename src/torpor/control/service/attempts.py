"""Attempts: how often something was tried of late, so that it is not tried for ever."""

from __future__ import annotations

from collections import deque

from torpor.kit.clock import Clock
from torpor.model.ids import SandboxId

AT_MOST = 3
WITHIN_S = 600.0


class Attempts:
    """Allows AT_MOST attempts for each sandbox within WITHIN_S seconds. Counted in memory: a new server counts anew."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: dict[SandboxId, deque[float]] = {}

    def may_begin(self, sandbox_id: SandboxId) -> bool:
        """Tell whether one more attempt is allowed now."""
        times = self._times.get(sandbox_id)
        if times is None:
            return True
        while times and times[0] <= self._clock.monotonic() - WITHIN_S:
            times.popleft()
        if not times:
            del self._times[sandbox_id]
        return len(times) < AT_MOST

    def count(self, sandbox_id: SandboxId) -> None:
        """Note that an attempt begins."""
        self._times.setdefault(sandbox_id, deque()).append(self._clock.monotonic())
