"""Pace: how far each sandbox has run since its last checkpoint, in seconds of running and in commands."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass

from torpor.kit.clock import Clock
from torpor.model.ids import SandboxId
from torpor.model.lifecycle import ANSWERING
from torpor.model.sandbox import Sandbox
from torpor.model.snapshot import Kind


@dataclass(slots=True)
class _Run:
    """Seconds of running up to the last look, and that look's moment (monotonic), None where it did not run then."""

    ran_s: float
    looked_at: float | None = None


class Pace:
    """What is counted in memory of each sandbox that wants checkpoints.

    `look` is called whenever a sandbox may have begun or ceased to run. The command counts begin at a creation, or at
    the server's start.
    """

    def __init__(self, clock: Clock, bell: asyncio.Event) -> None:
        self._clock = clock
        self._bell = bell
        self._runs: dict[SandboxId, _Run] = {}
        self._commands = Counter[SandboxId]()
        self._every: dict[SandboxId, int] = {}

    def is_known(self, sandbox_id: SandboxId) -> bool:
        """Tell whether a sandbox's running is being counted."""
        return sandbox_id in self._runs

    def look(self, sandbox: Sandbox, ran_s: float = 0.0) -> None:
        """Count what a sandbox ran since the last look; at the first look, it has run `ran_s` seconds."""
        now = self._clock.monotonic()
        run = self._runs.setdefault(sandbox.id, _Run(ran_s))
        if run.looked_at is not None:
            run.ran_s += now - run.looked_at
        run.looked_at = now if sandbox.state in ANSWERING else None
        if sandbox.care.checkpoint_every_execs is not None:
            self._every[sandbox.id] = sandbox.care.checkpoint_every_execs

    def left_s(self, sandbox: Sandbox) -> float | None:
        """Return after how many more seconds of running a checkpoint is due, 0 if it is; None if none will be.

        As of the last look.
        """
        care, run = sandbox.care, self._runs[sandbox.id]
        if care.checkpoint_every_execs is not None and self._commands[sandbox.id] >= care.checkpoint_every_execs:
            return 0.0
        if care.checkpoint_every_seconds is None:
            return None
        return max(0.0, care.checkpoint_every_seconds - run.ran_s)

    def command_ended(self, sandbox_id: SandboxId) -> None:
        """Count a command."""
        self._commands[sandbox_id] += 1
        every = self._every.get(sandbox_id)
        if every is not None and self._commands[sandbox_id] >= every:
            self._bell.set()

    def begin_anew(self, sandbox: Sandbox) -> None:
        """Note that a checkpoint is being taken, which whatever becomes of it is not due again for a while."""
        self.kept(sandbox.id, Kind.AUTOMATIC)
        if sandbox.care.checkpoint_every_execs is not None:
            self._commands[sandbox.id] %= sandbox.care.checkpoint_every_execs

    def kept(self, sandbox_id: SandboxId, kind: Kind) -> None:
        """Note that there is a snapshot now. A fork's is no checkpoint of its parent, whose pace it leaves alone."""
        run = self._runs.get(sandbox_id)
        if run is not None and kind is not Kind.FORK:
            run.ran_s = 0.0
            run.looked_at = None if run.looked_at is None else self._clock.monotonic()

    def forget_others(self, living: Container[SandboxId]) -> None:
        """Drop what is known of sandboxes that are not among the living."""
        for known in (self._runs, self._every, self._commands):
            for gone in [one for one in known if one not in living]:
                del known[gone]
