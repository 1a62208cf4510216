"""Room on the host's disk: asked for before something large is written, and what is said when there is none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torpor.errors import FreezeFailed, OutOfSpace
from torpor.kit.files import is_full

MIB, GIB = 1024**2, 1024**3
# Left free on the disk of the data directory, unless another size is set: for the records, the logs, and whoever else
# uses it; and inside a volume, where only what is noted of sandboxes has to find room.
RESERVE, VOLUME_RESERVE = 512 * MIB, 256 * MIB


@contextmanager
def written(place: Path, failure: str) -> Iterator[None]:
    """Raise what the host's file system says in the block as OutOfSpace, with figures of `place`, or as FreezeFailed.

    `failure`: what did not work, for the beginning of a sentence.
    """
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise out_of_space(place) from error
        raise FreezeFailed(f"{failure}: {error}", hint="look at the host's disk") from error


def out_of_space(place: Path, wanted: int = 0, reserve: int = 0) -> OutOfSpace:
    """Return the error for a full disk of the host, with its figures.

    `wanted`: how much is needed; `reserve`: how much stays free, in bytes.
    """
    free, total = free_and_total(place)
    need = f"; {wanted // MIB} MiB are needed" if wanted else ""
    if reserve:
        need += f"{', and' if wanted else ';'} {reserve // MIB} MiB stay free"
    return OutOfSpace(
        f"the host's disk is full: {free // MIB} of {total // MIB} MiB are free at {place}{need}",
        hint="delete snapshots or sandboxes, or make room on the host; `torpor doctor` says how much there is",
    )


def free_and_total(place: Path) -> tuple[int, int]:
    """Return how many bytes are free for us on the file system of `place`, and how large it is."""
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


def demand_room(place: Path, wanted: int, reserve: int = RESERVE) -> None:
    """Raise OutOfSpace unless `wanted` bytes, and a reserve beside them, are free on the file system of `place`."""
    if free_and_total(place)[0] < wanted + reserve:
        raise out_of_space(place, wanted, reserve)
