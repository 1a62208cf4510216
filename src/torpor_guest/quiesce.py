"""`quiesce` and `unquiesce`: a guest that stands still, ready to be saved, and goes on."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from torpor_guest.cgroups import CgroupTree
from torpor_guest.connection import SendsOnly, Stream
from torpor_guest.hooks import Hooks, Ran, Run
from torpor_guest.loop import PRIORITY, Loop, Timer
from torpor_guest.refusal import Refusal
from torpor_guest.requests import Request

_DEFAULT_TIMEOUT_S = 5.0
# What hooks have to leave of the time for the stopping itself; half of it where that is less.
_STOPPING_S = 2.0


class User(NamedTuple):
    """Everything of the user's, as a freeze sees it.

    `tree` is None where there are no control groups: then nothing is stopped. `sync` has what was written to volumes be
    in them.
    """

    tree: CgroupTree | None
    hooks: Hooks
    sync: Callable[[], None]


class Quiescence:
    """Stops and continues everything of the user's. `set_clock` takes nanoseconds since 1970 and raises OSError."""

    def __init__(self, loop: Loop, user: User, set_clock: Callable[[int], None]) -> None:
        self._loop, self._user, self._set_clock = loop, user, set_clock
        self._tree, self._hooks = user.tree, user.hooks
        self._freeze: _Freeze | None = None

    def quiesce(self, stream: Stream, request: Request) -> None:
        """`quiesce` {timeout_s?, settle?, hooks?}: RESULT {frozen} (False: there was nothing to stop); not in time:
        ERROR, and everything runs on.

        What was written to volumes is in them then. With `hooks` the user's own run first, and leave enough of the
        time. With `settle` the disks are written, and no garbage is left in memory that would be saved: it costs time,
        and is for what many will start from.
        """
        timeout_s = request.optional_seconds("timeout_s") or _DEFAULT_TIMEOUT_S
        settle, with_hooks = request.flag("settle"), request.flag("hooks")
        if self._freeze is not None:
            self._freeze.give_way()
        self._freeze = freeze = _Freeze(self._loop, self._user, stream, settle=settle)
        freeze.begin(timeout_s, self._run_of(timeout_s) if with_hooks else None)

    def _run_of(self, timeout_s: float) -> Run | None:
        if self._tree is not None and self._tree.freezing():
            return None
        return self._hooks.make_run("freeze", timeout_s - min(_STOPPING_S, timeout_s / 2))

    def unquiesce(self, stream: Stream, request: Request) -> None:
        """`unquiesce` {wall_ns?}: RESULT {wall_ns}. If the clock cannot be set: ERROR, and everything stays stopped."""
        wall_ns = request.optional_whole("wall_ns", 1, 2**63 - 1)
        if wall_ns is not None:
            try:
                self._set_clock(wall_ns)
            except OSError as error:
                raise Refusal("failed", f"the guest's clock could not be set: {error}") from error
        self.thaw()
        stream.result({"wall_ns": time.time_ns()})

    def thaw(self) -> None:
        """Let everything go on; nothing happens if it does."""
        if self._freeze is not None:
            self._freeze.give_way()
            self._freeze = None
        if self._tree is not None and self._tree.freezing():
            self._tree.thaw()


class _Freeze(SendsOnly):
    """One freeze under way: hooks, and then waiting until the kernel says that every process has stopped."""

    def __init__(self, loop: Loop, user: User, stream: Stream, *, settle: bool) -> None:
        self._loop, self._tree, self._stream, self._settle = loop, user.tree, stream, settle
        self._sync = user.sync
        self._run: Run | None = None
        self._timer: Timer | None = None
        self._fd = -1

    def begin(self, timeout_s: float, run: Run | None) -> None:
        """Begin with the hooks, if there are any."""
        self._stream.operation = self
        self._timer = self._loop.after(timeout_s, self._run_out)
        if run is None or run.empty:
            self._stop()
        else:
            self._run = run
            run.begin(self._hooks_ran)

    def _hooks_ran(self, _: Ran) -> None:
        self._run = None
        try:
            self._stop()
        except OSError as error:
            self._undo(Refusal("failed", f"the sandbox's processes could not be stopped: {error}"))

    def _stop(self) -> None:
        if self._tree is None:
            self._answer(frozen=False)
            return
        self._fd = os.open(f"{self._tree.user}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        if not self._tree.freezing() and self._says(b"populated 0"):
            self._answer(frozen=False)
            return
        self._loop.watch(self._fd, PRIORITY, self._look)
        self._tree.freeze()
        self._look(0)

    def _says(self, line: bytes) -> bool:
        return line in os.pread(self._fd, 256, 0)

    def _look(self, _: int) -> None:
        if self._says(b"frozen 1"):  # reading it is also what makes the kernel tell of the next change
            self._answer(frozen=True)

    def _answer(self, *, frozen: bool) -> None:
        self._close()
        self._sync()  # whoever uses a volume after this sandbox finds in it what this one wrote
        if self._settle:
            os.sync()
            gc.collect()
        self._stream.result({"frozen": frozen})

    def _run_out(self) -> None:
        self._undo(Refusal("failed", "the sandbox's processes did not stop in time; they run on"))

    def _undo(self, refusal: Refusal) -> None:
        self._close()
        if self._tree is not None and self._tree.freezing():
            self._tree.thaw()
        self._stream.refuse(refusal)

    def give_way(self) -> None:
        """Another freeze, or the end of this one, is ordered. Nothing happens if it has ended."""
        if self._stream.open:
            self._close()
            self._stream.refuse(Refusal("cancelled", "the host has changed its mind"))

    def _close(self) -> None:
        if self._run is not None:
            self._run.stop()
            self._run = None
        if self._timer is not None:
            self._timer.cancel()
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1

    def on_cancel(self) -> None:
        self._undo(Refusal("cancelled", "the host gave up"))

    def on_drop(self) -> None:
        """Whatever has stopped or is about to stays so: the next host says who the guest is now, and lets it go on.

        This may be a copy of the guest that was frozen, which is nobody yet.
        """
        self._close()
