"""`quiesce` and `unquiesce`: a guest that stands still, its disk written, ready to be saved."""

from __future__ import annotations

import gc
import os

from torpor_guest.cgroups import CgroupTree
from torpor_guest.connection import SendsOnly, Stream
from torpor_guest.loop import PRIORITY, Loop, Timer
from torpor_guest.refusal import Refusal
from torpor_guest.requests import Request

_DEFAULT_TIMEOUT_S = 5.0


class Quiescence:
    """Stops and continues everything of the user's.

    `tree` is None where there are no control groups: then nothing is stopped.
    """

    def __init__(self, loop: Loop, tree: CgroupTree | None) -> None:
        self._loop, self._tree = loop, tree

    def quiesce(self, stream: Stream, request: Request) -> None:
        """`quiesce` {timeout_s?}: RESULT {frozen} (False: there was nothing to stop); not in time: ERROR, and
        everything runs on.
        """
        timeout_s = request.optional_seconds("timeout_s") or _DEFAULT_TIMEOUT_S
        if self._tree is None or not self._tree.populated():
            _settle_down()
            stream.result({"frozen": False})
        else:
            _Freeze(self._loop, self._tree, stream, timeout_s)

    def unquiesce(self, stream: Stream, request: Request) -> None:
        """`unquiesce` {}: RESULT {}."""
        del request
        self.thaw()
        stream.result({})

    def thaw(self) -> None:
        """Let everything go on; nothing happens if it does."""
        if self._tree is not None and self._tree.freezing():
            self._tree.thaw()


def _settle_down() -> None:
    """Write the disks, and leave no garbage in memory that would be saved."""
    os.sync()
    gc.collect()


class _Freeze(SendsOnly):
    """One freeze under way: waits until the kernel says that every process has stopped."""

    def __init__(self, loop: Loop, tree: CgroupTree, stream: Stream, timeout_s: float) -> None:
        self._loop, self._tree, self._stream = loop, tree, stream
        self._fd = os.open(f"{tree.user}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        self._timer: Timer = loop.after(timeout_s, self._run_out)
        stream.operation = self
        loop.watch(self._fd, PRIORITY, self._look)
        tree.freeze()
        self._look(0)

    def _look(self, _: int) -> None:
        os.pread(self._fd, 256, 0)  # what makes the kernel tell of the next change
        if self._tree.frozen():
            self._close()
            _settle_down()
            self._stream.result({"frozen": True})

    def _run_out(self) -> None:
        self._undo(Refusal("failed", "the sandbox's processes did not stop in time; they run on"))

    def _undo(self, refusal: Refusal) -> None:
        self._close()
        self._tree.thaw()
        self._stream.refuse(refusal)

    def _close(self) -> None:
        self._timer.cancel()
        self._loop.unwatch(self._fd)
        os.close(self._fd)

    def on_cancel(self) -> None:
        self._undo(Refusal("cancelled", "the host gave up"))

    def on_drop(self) -> None:
        self._undo(Refusal("cancelled", "the host is gone"))
