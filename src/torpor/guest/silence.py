"""Noticing that a guest hangs: it owes an answer and says nothing at all, not even when it is asked."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Listener(Protocol):
    """Who has to do with a guest's silence."""

    def owed(self) -> bool:
        """Tell whether the guest owes an answer."""

    def ask(self) -> None:
        """Ask the guest for a sign of life."""

    def give_up(self) -> None:
        """The guest has been silent for too long."""


class Silence:
    """Measures how long a guest has said nothing while it owed an answer.

    After half of `limit_s` seconds the listener asks for a sign of life, at the end it gives up. A guest that owes
    nothing may be silent for ever, and costs nothing.
    """

    def __init__(self, limit_s: float, listener: Listener) -> None:
        self.limit_s = limit_s
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def heard(self) -> None:
        """The guest has said something."""
        self._heard_at = self._loop.time()

    def begin(self) -> None:
        """The guest owes an answer from now on."""
        if self._timer is None:
            self.heard()
            self._timer = self._loop.call_later(self.limit_s / 2, self._look)

    def end(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if not self._listener.owed():
            return
        silent_s = self._loop.time() - self._heard_at
        if silent_s >= self.limit_s:
            self._listener.give_up()
            return
        asked = silent_s >= self.limit_s / 2
        if asked:
            self._listener.ask()
        rest_s = (self.limit_s if asked else self.limit_s / 2) - silent_s
        self._timer = self._loop.call_later(rest_s, self._look)
