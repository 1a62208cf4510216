"""A sandbox that sleeps while something else is waited for."""

from __future__ import annotations

import contextlib
import time
from types import TracebackType
from typing import TYPE_CHECKING

from torpor.errors import Conflict, OutcomeUnknown, TorporError
from torpor.sdk.http import Call
from torpor.sdk.orders import snapshot_filters
from torpor.sdk.thinking import SHORTEST_LOOK_S, Pause, Pauses
from torpor.sdk.waiting import SyncAside
from torpor.wire.public import SnapshotPage

if TYPE_CHECKING:
    from torpor.sdk._sync.client import Client
    from torpor.sdk._sync.life import Life

# What an earlier hibernation took is nice to know, and not worth waiting for.
_GUESS_SILENCE_S = 5.0
_NEWEST_SNAPSHOTS = 20
# In these it is not asleep, and it is not for this block to change that.
_AWAKE = frozenset({"running", "paused", "snapshotting"})


class Thinking:
    """The block of `Sandbox.thinking`. It gives the `Pause` in which it tells what became of it."""

    def __init__(self, sandbox: Life, client: Client, pauses: Pauses) -> None:
        self._sandbox = sandbox
        self._client = client
        self._pauses = pauses
        self._pause = Pause()
        self._began = 0.0
        self._asleep_since: float | None = None
        self._aside: SyncAside | None = None

    def __enter__(self) -> Pause:
        self._began = time.monotonic()
        # Where another block is open, that one decides.
        if self._pauses.enter():
            self._aside = SyncAside(self._sleep_through)
        return self._pause

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pause.waited_s = time.monotonic() - self._began
        if self._aside is None:
            return
        try:
            self._aside.end()
            if self._asleep_since is not None and self._sandbox.state != "deleted":
                self._wake(self._asleep_since, error)
        finally:
            self._pauses.leave(self._pause)

    def _sleep_through(self, aside: SyncAside) -> None:
        """Hibernate the sandbox once the wait has lasted long enough and nothing is using it, unless it ends before."""
        costs, pause = self._pauses.costs, self._pause
        if not costs.is_measured:
            self._guess_costs()
        pause.break_even_s = costs.break_even_s
        pause.threshold_s = self._pauses.waits.threshold_s(pause.break_even_s)
        still_s = pause.threshold_s - (time.monotonic() - self._began)
        while not aside.ends_within(max(0.0, still_s)):
            try:
                self._hibernate()
            except Conflict:  # a command of this program, most likely; it is not to be stopped in its midst
                pause.left = "in use"
                still_s = max(SHORTEST_LOOK_S, pause.break_even_s)
                continue
            except TorporError as error:
                pause.error = error.message
                # Where the answer was lost it may be asleep.
                self._asleep_since = time.monotonic() if isinstance(error, OutcomeUnknown) else None
            return

    def _hibernate(self) -> None:
        """Hibernate it if it runs. What is paused, or sleeps already, is that for somebody's reasons, and stays so."""
        state = (self._sandbox.refresh()).state
        self._pause.left = None if state in ("running", "snapshotting") else state
        if self._pause.left is not None:
            return
        began = time.monotonic()
        self._sandbox.hibernate(if_unused=True)
        self._asleep_since = time.monotonic()
        self._pause.hibernated = True
        self._pauses.costs.hibernated(self._asleep_since - began)

    def _wake(self, asleep_since: float, error: BaseException | None) -> None:
        began = time.monotonic()
        try:
            # Something else may have woken it, and then nobody here knows how long it slept.
            if (self._sandbox.refresh()).state in _AWAKE:
                return
            self._pause.asleep_s = began - asleep_since
            self._sandbox.wake()
        except TorporError as failure:
            self._pause.error = failure.message
            if error is None:
                raise
            # The block's own error is the one to be told.
            error.add_note(f"The sandbox could not be woken: {failure.message}")
            error.__context__ = error.__context__ or failure
            return
        took_s = time.monotonic() - began
        self._pauses.costs.woke(took_s)
        self._pause.saved_s = self._pause.asleep_s - took_s

    def _guess_costs(self) -> None:
        query = snapshot_filters(self._sandbox.id, _NEWEST_SNAPSHOTS, None)
        call = Call("GET", "/snapshots", params=query, silence_s=_GUESS_SILENCE_S, once=True)
        hibernation_s = None
        # Without it the first guess stands.
        with contextlib.suppress(TorporError):
            page = self._client.fetch_as(SnapshotPage, call)
            hibernation_s = next((one.took_ms / 1000 for one in page.items if one.kind == "hibernation"), None)
        boot_ms = self._sandbox.info.boot_ms
        self._pauses.costs.guess(hibernation_s, None if boot_ms is None else boot_ms / 1000)
