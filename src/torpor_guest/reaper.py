"""Ended children: one loop takes them all, tells whoever started them, and lets orphans go."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

from torpor_guest.loop import IN, Loop, report_fault

# Children taken in one turn of the loop.
_AT_ONCE = 256
_PR_SET_CHILD_SUBREAPER = 36

# What waitpid tells of an ended process.
Ended = Callable[[int], None]


class Reaper:
    """Reaps every child and every orphan of this process; nothing else in it may wait for children."""

    def __init__(self, loop: Loop) -> None:
        self._waiting: dict[int, Ended] = {}
        self._read, self._write = socket.socketpair()
        for end in (self._read, self._write):
            end.setblocking(False)
        signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        loop.watch(self._read.fileno(), IN, self._reap)

    def expect(self, pid: int, ended: Ended) -> None:
        """Call `ended` with the wait status once `pid` has ended."""
        self._waiting[pid] = ended

    def _reap(self, _: int) -> None:
        try:
            self._read.recv(4096)
        except BlockingIOError:
            return
        for _ in range(_AT_ONCE):
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended = self._waiting.pop(pid, None)
            if ended is not None:
                _tell(ended, status)
        with suppress(BlockingIOError):  # full, which wakes us as well
            self._write.send(b"\0")  # there may be more; others get their turn first


def _tell(ended: Ended, status: int) -> None:
    """Tell of an end. What fails in one command must not end the reaping, on which all of them wait."""
    try:
        ended(status)
    except Exception:
        report_fault()


def become_subreaper() -> None:
    """Make orphans below this process its children, as they are for a system's first process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
