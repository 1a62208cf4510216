"""One server for one data directory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torpor.errors import Busy


@contextmanager
def locked(path: Path, *, what: str) -> Iterator[None]:
    """Hold the lock file `path` while the block runs; the kernel gives it back if this process dies.

    Raises Busy, with the holder's process id, if another process holds it. `what` names the locked thing in that
    message.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise Busy(
                f"{what} is in use by process {holder}", hint="stop it first, or choose another --home"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def alive(path: Path) -> Iterator[None]:
    """Show, by a lock on the file `path`, that this process lives while the block runs; several may.

    Who wants to know tries to have the lock alone, which takes no time, so nobody is ever refused because of that.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)
