"""A program that brings a guest's root disk to rest, so that it can be used without this guest's memory.

All processes but the agent and this one are killed, what they wrote goes to the disk, and it is mounted read-only,
which the file system takes for a clean end. There is no way back: the machine is ended after it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

_PATIENCE_S = 60.0
_AGAIN_S = 0.05


def main() -> None:
    """Do it, and end with 1 and one line of words where that fails."""
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)  # everybody but the first process and us
    os.sync()
    # The kernel's own way of doing it at a crash, which asks nobody who still has a file open.
    with open("/proc/sysrq-trigger", "wb", buffering=0) as trigger:
        trigger.write(b"u")
    deadline = time.monotonic() + _PATIENCE_S
    while not _is_read_only():
        if time.monotonic() > deadline:
            sys.exit("finish: the root disk could not be brought to rest")
        time.sleep(_AGAIN_S)


def _is_read_only() -> bool:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            fields = before.split()
            if fields[4] == "/" and after.startswith("ext4 "):
                return "ro" in after.split()[2].split(",")
    return False


if __name__ == "__main__":
    main()
