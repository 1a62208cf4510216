"""Who comes first where processors are short."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Where the kernel weighs whole sessions against each other (`sched_autogroup_enabled`), a process's priority counts
# within its session only, and this is the session's own (sched(7), "The autogroup feature").
_SESSION = Path("/proc/self/autogroup")


def set_priority(value: int) -> None:
    """Set the priority of this program: from -20, before all others, to 19. If it leads a session, of that too.

    Raises PermissionError.
    """
    os.setpriority(os.PRIO_PROCESS, 0, value)
    if os.getsid(0) == os.getpid():
        _set_sessions(value)


@contextmanager
def priority(value: int) -> Iterator[None]:
    """Let this program, and its session, have a priority while the block runs, where that is permitted."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, min(before, value))
        _set_sessions(min(before, value))
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)
            _set_sessions(before)


def _set_sessions(value: int) -> None:
    try:
        _SESSION.write_text(str(value))
    except FileNotFoundError:
        pass  # a kernel that knows no such thing
    except OSError as exc:
        # EINVAL: a process without setsid() above it is weighed by itself, in the group of all. EAGAIN: without
        # CAP_SYS_ADMIN the kernel takes ten changes a second of the whole machine (kernel/sched/autogroup.c).
        if exc.errno not in (errno.EINVAL, errno.EAGAIN):
            raise
