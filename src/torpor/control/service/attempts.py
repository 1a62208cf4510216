"""Attempts: how often something was tried of late, so that it is not tried for ever."""

from __future__ import annotations

from torpor.kit.clock import Clock
from torpor.model.ids import SandboxId

AT_MOST = 3
WITHIN_S = 600.0


class Attempts:
    """Allows AT_MOST attempts for each sandbox within WITHIN_S seconds. Counted in memory: a new server counts anew.

    `has_caught_up`: whether what an earlier server left untried has been begun.
    """

    def __init__(self, clock: Clock) -> None:
        self.has_caught_up = False
        self._clock = clock
        self._times: dict[SandboxId, list[float]] = {}

    def may_begin(self, sandbox_id: SandboxId) -> bool:
        """Tell whether one more attempt is allowed now."""
        self._forget_old()
        return len(self._times.get(sandbox_id, ())) < AT_MOST

    def count(self, sandbox_id: SandboxId) -> None:
        """Note that an attempt begins."""
        self._forget_old()
        self._times.setdefault(sandbox_id, []).append(self._clock.monotonic())

    def take_back(self, sandbox_id: SandboxId) -> None:
        """Let the last attempt not have been one."""
        if times := self._times.get(sandbox_id):
            times.pop()

    def _forget_old(self) -> None:
        horizon = self._clock.monotonic() - WITHIN_S
        kept = {one: [moment for moment in times if moment > horizon] for one, times in self._times.items()}
        self._times = {one: times for one, times in kept.items() if times}
