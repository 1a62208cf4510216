"""One command's process: its start, its timeout, its end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torpor_guest import spawn
from torpor_guest.cgroups import Cgroup
from torpor_guest.execs import Execs
from torpor_guest.loop import Timer
from torpor_guest.refusal import no_room
from torpor_guest.sessions import Session

# How a command ended, as it is told.
Outcome = dict[str, Any]


class Process:
    """A command's process, its timeout and its end. `ended` is called with how it ended, once."""

    def __init__(self, execs: Execs, timeout_s: float | None, ended: Callable[[Outcome], None]) -> None:
        self.pid = 0
        self.running = False
        self._execs, self._timeout_s, self._tell = execs, timeout_s, ended
        self._began = time.monotonic()
        self._timer: Timer | None = None
        self._timed_out = False
        self._group: Cgroup | Session

    def start(self, order: spawn.Order, streams: spawn.Streams) -> None:
        """Start it. Raises spawn.CannotRun, or Refusal if there is no room for another one."""
        try:
            self.pid, self._group = self._execs.start(order, streams)
        except OSError as error:  # no descriptor, process or control group to be had
            raise no_room(error) from error
        self.running = True
        self._execs.expect(self.pid, self._ended)
        if self._timeout_s is not None:
            self._timer = self._execs.after(self._timeout_s, self._run_out)

    def cannot_run(self, error: spawn.CannotRun) -> Outcome:
        """Return how a command ends that was never started."""
        return self._told(_outcome(error.code, None))

    def kill(self) -> None:
        """Kill it with all its children."""
        kill(self._group, self.pid)

    def signal(self, number: int) -> bool:
        """Send a signal to its process group, or SIGKILL to all its processes. Returns False if it has ended."""
        if self.running and number == signal.SIGKILL:
            self.kill()
        elif self.running:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)  # it leads a session of its own, and is not reaped yet
        return self.running

    def _run_out(self) -> None:
        self._timed_out = True
        self.kill()

    def _ended(self, status: int) -> None:
        self.running = False
        if self._timer is not None:
            self._timer.cancel()
        outcome = _outcome_of(status) | {"oom_killed": self._group.oom_killed(), "timed_out": self._timed_out}
        try:
            self._tell(self._told(outcome))
        finally:
            self._execs.retire(self._group)

    def _told(self, outcome: Outcome) -> Outcome:
        outcome["duration_ms"] = round((time.monotonic() - self._began) * 1000)
        return outcome


def kill(group: Cgroup | Session, pid: int) -> None:
    """Kill a command that has not ended yet, also where root has led it out of its group."""
    try:
        group.kill()
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own


def last_words(name: bytes, error: spawn.CannotRun) -> bytes:
    """Return what a shell would say of a program that cannot be run."""
    return name[:4096] + b": " + error.reason.encode() + b"\n"


def _outcome_of(status: int) -> Outcome:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return _outcome(code, None)
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"SIG{-code}"  # a real-time signal
    return _outcome(128 - code, name)


def _outcome(exit_code: int, signal_name: str | None) -> Outcome:
    return {"exit_code": exit_code, "signal": signal_name, "oom_killed": False, "timed_out": False}
