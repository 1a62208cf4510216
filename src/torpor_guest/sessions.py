"""Where there are no control groups: a command is its process, what descends from it, and its session.

Good enough to develop with; a process that leaves the session after its parent has died escapes. A guest has control
groups.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress


class Session:
    """What a command started with `pid` as its leader can be killed by."""

    def __init__(self, pid: int) -> None:
        self._leader = pid

    def kill(self) -> None:
        """Kill the leader, its descendants, and all of its session."""
        # The leader first: it is not to see how the others end, and end by itself.
        for pid in (self._leader, *(_members(self._leader) - {self._leader})):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def oom_killed(self) -> bool:
        """Cannot be known here."""
        return False


def _members(leader: int) -> set[int]:
    """Return the processes of the leader's session and those that descend from one of them."""
    facts = [fact for name in os.listdir("/proc") if name.isdigit() and (fact := _fact(int(name))) is not None]
    members = {pid for pid, _, session in facts if session == leader}
    found = True
    while found:
        below = {pid for pid, parent, _ in facts if parent in members} - members
        members |= below
        found = bool(below)
    return members


def _fact(pid: int) -> tuple[int, int, int] | None:
    """Return a process' id, its parent's and its session's, or None if it has gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return pid, int(fields[1]), int(fields[3])
