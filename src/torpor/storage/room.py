"""Room on the host's disk: asked for before something large is written, and what is said when there is none."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from torpor.errors import OutOfSpace

MIB, GIB = 1024**2, 1024**3
# Left free for the records, the logs, and whoever else uses the disk.
RESERVE = 256 * MIB

_FULL = {errno.ENOSPC, errno.EDQUOT}


def is_full(error: OSError) -> bool:
    """Tell whether an error means that the host's disk, or what its owner may use of it, is full."""
    return error.errno in _FULL


def out_of_space(place: Path, wanted: int = 0) -> OutOfSpace:
    """Return the error for a full disk of the host, with its figures. `wanted`: how much is needed, in bytes."""
    free, total = free_and_total(place)
    need = f"; {wanted // MIB} MiB are needed, and {RESERVE // MIB} MiB stay free" if wanted else ""
    return OutOfSpace(
        f"the host's disk is full: {free // MIB} of {total // MIB} MiB are free at {place}{need}",
        hint="delete snapshots or sandboxes, or make room on the host; `torpor doctor` says how much there is",
    )


def free_and_total(place: Path) -> tuple[int, int]:
    """Return how many bytes are free for us on the file system of `place`, and how large it is."""
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


def demand_room(place: Path, wanted: int) -> None:
    """Raise OutOfSpace unless `wanted` bytes, and the reserve, are free on the file system of `place`."""
    if free_and_total(place)[0] < wanted + RESERVE:
        raise out_of_space(place, wanted or RESERVE)
