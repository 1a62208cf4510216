"""What tests on real guests ask them, and what they look up on the host about them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from torpor import Sandbox


def clock_error_s(sandbox: Sandbox) -> float:
    """Return how far a guest's clock is ahead of ours, in seconds, by one command."""
    before = time.time()
    told = float(sandbox.exec("date +%s.%N").stdout)
    after = time.time()
    return 0.0 if before <= told <= after else told - (before if told < before else after)


def random_of(sandbox: Sandbox) -> str:
    """Return what a guest draws at random, by one command."""
    return sandbox.exec("cat /proc/sys/kernel/random/uuid; head -c 16 /dev/urandom | od -An -tx1").stdout


def machines_of(sandbox: Sandbox) -> list[int]:
    """Return the processes that run a sandbox's machine: QEMUs with a file of the sandbox open."""
    return [pid for pid in processes_named("qemu-system") if any(f"/{sandbox.id}/" in name for name in open_files(pid))]


def processes_named(beginning: str) -> list[int]:
    """Return the processes of this machine whose program's name begins so."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in numbers if read(f"/proc/{pid}/comm").startswith(beginning)]


def read(path: str) -> str:
    """Return the text of a file of /proc; empty if its process has ended."""
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def open_files(pid: int) -> list[str]:
    """Return the names of a process's open files; none if it has ended."""
    try:
        return [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return []
