"""The agent's event loop: epoll, timers and small steps of long work, in one thread.

Written by hand because the guest may be emulated: asyncio costs about ten times the Python code per event, and after
every restore each piece of code that runs first has to be translated anew, so the less there is the sooner the first
answer leaves.
"""

from __future__ import annotations

import heapq
import itertools
import select
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable

IN = select.EPOLLIN
OUT = select.EPOLLOUT
PRIORITY = select.EPOLLPRI
HANGUP = select.EPOLLHUP
EDGE = select.EPOLLET
ONCE = select.EPOLLONESHOT

Handler = Callable[[int], None]

# epoll takes no more than 24 days at once.
_LONGEST_WAIT_S = 86_400.0


class Timer:
    """A call due once. `cancel` is idempotent."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Never call."""
        self.call = None


class Loop:
    """Calls handlers for descriptors that are ready, timers that are due and steps that are left, until `stop`.

    A handler that raises is a fault of ours: it is written to the console, the descriptor is watched no more and
    everybody else goes on, because the end of this process is the end of the whole guest. `flush` is called before
    the steps and after them, to send what was produced; if it returns True there is more to do and the next turn does
    not wait.
    """

    def __init__(self) -> None:
        self.flush: Callable[[], bool] = lambda: False
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        # Cancelled timers stay in the heap until they are due or this many have gathered.
        self._sweep_at = 64
        self._steps: deque[Callable[[], bool]] = deque()
        self._count = itertools.count()
        self._running = True

    def watch(self, fd: int, events: int, handler: Handler) -> None:
        """Call `handler(events)` when `fd` is ready. It must tolerate being called once for nothing."""
        self._epoll.register(fd, events)
        self._handlers[fd] = handler

    def change(self, fd: int, events: int) -> None:
        """Watch for other events, or again after ONCE."""
        self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """Stop watching; to be called before the descriptor is closed."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call once after `seconds` of monotonic time; time that the whole machine sleeps does not count."""
        if len(self._timers) > self._sweep_at:
            self._timers = [entry for entry in self._timers if entry[2].call is not None]
            heapq.heapify(self._timers)
            self._sweep_at = max(64, 2 * len(self._timers))
        timer = Timer(call)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._count), timer))
        return timer

    def step(self, work: Callable[[], bool]) -> None:
        """Call `work` once per turn until it returns False."""
        self._steps.append(work)

    def stop(self) -> None:
        """Return from `run` after this turn."""
        self._running = False

    def run(self) -> None:
        """Turn until stopped."""
        more = self.flush()
        while self._running:
            for fd, events in self._epoll.poll(self._wait_s(more), 64):
                self._handle(fd, events)
            self._run_timers()
            more = self.flush()
            if self._steps:
                self._run_steps()
                more = self.flush()

    def _handle(self, fd: int, events: int) -> None:
        handler = self._handlers.get(fd)
        if handler is None:  # an earlier handler of this turn has closed it
            return
        try:
            handler(events)
        except Exception:
            report_fault()
            self.unwatch(fd)

    def _wait_s(self, more: bool) -> float:
        if more or self._steps:
            return 0
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return -1
        return min(max(0.0, self._timers[0][0] - time.monotonic()), _LONGEST_WAIT_S)

    def _run_timers(self) -> None:
        if not self._timers:
            return
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                try:
                    call()
                except Exception:
                    report_fault()

    def _run_steps(self) -> None:
        for _ in range(len(self._steps)):
            work = self._steps.popleft()
            try:
                if work():
                    self._steps.append(work)
            except Exception:
                report_fault()


def report_fault() -> None:
    """Write the exception being handled to the console."""
    traceback.print_exc(file=sys.stderr)
    sys.stderr.flush()
