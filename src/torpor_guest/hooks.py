"""The user's own programs around a freeze: `hooks`.

    /etc/torpor/hooks/pre-freeze.d   before everything is stopped
    /etc/torpor/hooks/post-wake.d    after a hibernation
    /etc/torpor/hooks/post-fork.d    in whatever was made from a snapshot: a fork, a restore

Of a folder its executable files run as root, one after another in the byte order of their names, each as a command of
its own would, with its output on the console. One that fails, or takes longer than HOOK_S seconds, is killed with all
its children and named on the console; it stops nothing.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from torpor_guest import names, spawn
from torpor_guest.cgroups import Cgroup
from torpor_guest.connection import SendsOnly, Stream
from torpor_guest.execs import Execs
from torpor_guest.loop import Timer
from torpor_guest.process import kill
from torpor_guest.refusal import Refusal, invalid
from torpor_guest.requests import Request
from torpor_guest.sessions import Session

ROOT = "/etc/torpor/hooks"
HOOK_S = 10.0
# All hooks after a wake or a fork together.
_ALL_S = 60.0
_MOST = 64
_NAMES = {"freeze": b"pre-freeze", "wake": b"post-wake", "fork": b"post-fork"}
# How often it is looked whether a freeze is over that began between two hooks.
_AGAIN_S = 0.05


class Ran(NamedTuple):
    """How many hooks ran, and the names of those that failed."""

    hooks: int
    failed: list[bytes]


class Hooks:
    """Finds hooks below `root` and runs them."""

    def __init__(self, execs: Execs, root: str = ROOT) -> None:
        self._execs, self._root = execs, os.fsencode(root)

    def count(self, event: str) -> int:
        """Return how many hooks there are. Raises Refusal for an event that there is not."""
        return len(self._find(event))

    def serve(self, stream: Stream, request: Request) -> None:
        """`hooks` {event}: RESULT {ran, failed: [names]}."""
        self._execs.check_running()
        _Serving(stream, self.make_run(request.text("event"), _ALL_S))

    def make_run(self, event: str, budget_s: float) -> Run:
        """Return a run of the hooks there are, which take `budget_s` seconds together at most."""
        found = self._find(event)
        return Run(self._execs, found, _NAMES[event], budget_s)

    def _find(self, event: str) -> list[bytes]:
        if event not in _NAMES:
            raise invalid(f"there are no hooks for {event[:64]!r}")
        folder = self._root + b"/" + _NAMES[event] + b".d"
        try:
            there = os.listdir(folder)
        except OSError:  # no such folder, or none that can be read
            return []
        paths = [folder + b"/" + name for name in sorted(there) if name[:1] != b"." and name[-1:] != b"~"]
        return [path for path in paths if _is_program(path)][:_MOST]


def _is_program(path: bytes) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and mode & 0o111 != 0


class Run:
    """Hooks under way, one after another."""

    def __init__(self, execs: Execs, paths: list[bytes], event: bytes, budget_s: float) -> None:
        self.empty = not paths
        self._execs, self._event, self._budget_s = execs, event, budget_s
        self._left = deque(paths)
        self._count = 0
        self._failed: list[bytes] = []
        self._current: _Hook | None = None
        self._console = -1
        self._done: Callable[[Ran], None] = lambda _: None

    def begin(self, done: Callable[[Ran], None]) -> None:
        """Run them; `done` is called once, at the end, unless it is stopped before."""
        self._done = done
        self._deadline = time.monotonic() + self._budget_s
        if not self.empty:
            self._console = _open_console(self._execs.null)
        self._next()

    def stop(self) -> None:
        """Kill what runs and run no more."""
        self._left.clear()
        self._done = lambda _: None
        if self._current is not None:
            self._current.kill()

    def _next(self) -> None:
        while self._left:
            if self._execs.freezing():  # nothing can be started now
                self._execs.after(_AGAIN_S, self._next)
                return
            path = self._left.popleft()
            self._count += 1
            seconds = min(HOOK_S, self._deadline - time.monotonic())
            if self._started(path, seconds):
                return
        if self._console >= 0:
            os.close(self._console)
            self._console = -1
        self._done(Ran(self._count, self._failed))

    def _started(self, path: bytes, seconds: float) -> bool:
        if seconds <= 0:
            self._fail(path, "there was no time left for it")
            return False
        order = self._execs.order_of_root([path], {b"TORPOR_HOOK": self._event})
        try:
            self._current = _Hook(self._execs, order, self._console, seconds, self._ended)
        except spawn.CannotRun as error:
            self._fail(path, error.reason)
        except OSError as error:
            self._fail(path, os.strerror(error.errno or 0).lower())
        else:
            return True
        return False

    def _ended(self, path: bytes, trouble: str | None) -> None:
        self._current = None
        if trouble is not None:
            self._fail(path, trouble)
        self._next()

    def _fail(self, path: bytes, why: str) -> None:
        name = os.path.basename(path)
        self._failed.append(name)
        text = f"torpor: the hook {names.to_text(path)} failed: {why}\n"
        os.write(self._console, text.encode("utf-8", "replace"))


class _Hook:
    """One hook that runs. Raises CannotRun, or OSError where there is no room for another process."""

    def __init__(
        self,
        execs: Execs,
        order: spawn.Order,
        console: int,
        seconds: float,
        ended: Callable[[bytes, str | None], None],
    ) -> None:
        self._execs, self._path, self._seconds, self._tell = execs, order.argv[0], seconds, ended
        self._overran = False
        self._pid: int
        self._group: Cgroup | Session
        self._pid, self._group = execs.start(order, spawn.Streams(execs.null, console, console))
        execs.expect(self._pid, self._ended)
        self._timer: Timer = execs.after(seconds, self._run_out)

    def kill(self) -> None:
        """Kill it with all its children; it ends soon after."""
        kill(self._group, self._pid)

    def _run_out(self) -> None:
        self._overran = True
        self.kill()

    def _ended(self, status: int) -> None:
        self._timer.cancel()
        trouble = f"it took longer than {self._seconds:.3g} s" if self._overran else _trouble_of(status)
        if trouble is not None:
            self._group.kill()
        self._execs.retire(self._group)
        self._tell(self._path, trouble)


def _trouble_of(status: int) -> str | None:
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return None
    return f"it ended with {code}" if code > 0 else f"it was ended by signal {-code}"


def _open_console(null: int) -> int:
    """Return a descriptor of our own for the console: what a hook does to it must not become ours."""
    try:
        return os.open("/proc/self/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # it is nothing that can be opened; then what hooks say is lost, and they run
        return os.dup(null)


class _Serving(SendsOnly):
    """Hooks that the host waits for. They run on if it goes away."""

    def __init__(self, stream: Stream, run: Run) -> None:
        self._stream, self._run = stream, run
        stream.operation = self
        run.begin(self._answer)

    def _answer(self, ran: Ran) -> None:
        self._stream.result({"ran": ran.hooks, "failed": [names.to_text(name) for name in ran.failed]})

    def on_cancel(self) -> None:
        self._run.stop()
        self._stream.refuse(Refusal("cancelled", "the host gave up"))

    def on_drop(self) -> None:
        """They need nobody who listens."""
