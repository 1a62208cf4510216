"""Where a crash is most interesting: named points of the passages, at which a test can have this process killed.

Nothing happens at a point unless the environment named one when the process started, which production never does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

VARIABLE = "TORPOR_CRASH_AT"

# Every point there is, in the order in which each passage comes to them. A test crashes at each of them.
POINTS = (
    # create, wake, rollback: a frozen guest comes to life
    "restore.loaded",  # its machine stands still, and belongs to nobody yet
    "restore.adopted",  # the guest has confirmed who it is
    "restore.confirmed",  # and that is noted
    "restore.thawed",  # its processes go on
    "wake.settled",  # the mark of its sleep is durably gone
    "rollback.aside",  # the former place is renamed away
    "rollback.replaced",  # the new one has its name
    # snapshot, hibernate, fork: a guest is frozen
    "freeze.drafted",  # the draft is there, with a clone of the memory image
    "freeze.stopped",  # the guest stands still
    "freeze.copied",  # everything of one instant is copied
    "freeze.sealed",  # and durable, with its manifest
    "freeze.marked",  # hibernation only: the mark of its sleep is durable
    "freeze.published",  # the snapshot has its name
    "freeze.linked",  # the sandbox's base is it
    "hibernate.frozen",  # the machine is about to be ended
    "hibernate.ended",  # and is gone
    "delete.ended",  # the machine is gone, its folder is there
    "pause.stopped",
    # the control plane's records
    "passage.begun",  # the state shows that it is under way
    "passage.answered",  # the host has done it
    "passage.settled",  # and that is recorded
    "snapshot.recorded",
)

# And where a passage that failed is undone.
UNDO_POINTS = (
    "wake.taken_back",  # the mark of its sleep is there again, and the machine still lives
    "restore.undone",  # the machine is ended, and what it wrote removed
)

# Only who makes or removes a volume, and sandboxes that have some, come to these.
VOLUME_POINTS = (
    "volume.linked",  # a volume's file is in a new sandbox's folder
    "volume.placed",  # what a sandbox goes on from is in its folder, and about to become the volume
    "volume.recorded",  # it is to be made
    "volume.made",  # its file is there
    "volume.marked",  # it is to be removed
    "volume.removed",  # its file is gone
)

_wanted = os.environ.get(VARIABLE, "")
_on_reached: Callable[[str], None] | None = None


def reached(point: str) -> None:
    """Say that a passage has come to one of POINTS, UNDO_POINTS or VOLUME_POINTS.

    If the environment named it, this process is killed here.
    """
    if point == _wanted:
        os.kill(os.getpid(), signal.SIGKILL)
    if _on_reached is not None:
        _on_reached(point)


def watch(on_reached: Callable[[str], None] | None) -> None:
    """Have a function called at every point, for tests in this process; None ends that."""
    global _on_reached  # noqa: PLW0603 - a switch of the whole process, as the environment's is
    _on_reached = on_reached
