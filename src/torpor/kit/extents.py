"""Where a file's bytes are: which ranges hold data, and which of them share their blocks with another file's."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from torpor.kit.runs import Run, merged

# linux/fs.h and linux/fiemap.h: _IOWR('f', 11, struct fiemap); start, length, flags, mapped, capacity, reserved.
_FIEMAP = 0xC020660B
_HEADER = struct.Struct("=QQIIII")
# struct fiemap_extent: logical, physical, length, two reserved, flags, three reserved.
_EXTENT = struct.Struct("=QQQ16xI12x")
_SYNC, _TO_THE_END = 1, 2**64 - 1
_LAST = 0x1
# Unknown, still to be allocated, encoded, encrypted, not aligned, inline, a shared tail, allocated and not written:
# where the address alone does not tell what the bytes are.
_UNSURE = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
_CANNOT_TELL = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EBADR, errno.ENOSYS}
_AT_A_TIME = 512
_HOLE = -1


class _Extent(NamedTuple):
    """A range of a file, and where on the disk it begins; None where that cannot be told."""

    start: int
    end: int
    place: int | None


def data_runs(descriptor: int, start: int, end: int) -> Iterator[Run]:
    """Yield the ranges of an open file from `start` to `end` that are no holes, ascending."""
    offset = start
    while offset < end:
        try:
            data = os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        if data >= end:
            return
        offset = min(os.lseek(descriptor, data, os.SEEK_HOLE), end)
        yield data, offset - data


def changed_runs(path: Path, base: Path) -> tuple[Run, ...] | None:
    """Return the ranges of `path` that may differ from the same ranges of `base`; None where it cannot be told.

    Ranges that share their blocks on the disk, or are holes in both, are equal; all else may differ. Written bytes of
    both are brought to their blocks first. Neither file may be changed meanwhile. Raises OSError.
    """
    with path.open("rb") as ours, base.open("rb") as theirs:
        one, other = os.fstat(ours.fileno()), os.fstat(theirs.fileno())
        if one.st_dev != other.st_dev:
            return None
        try:
            our_map, their_map = _map_of(ours.fileno()), _map_of(theirs.fileno())
        except OSError as error:
            if error.errno in _CANNOT_TELL:
                return None
            raise
    common = min(one.st_size, other.st_size)
    grown = (common, one.st_size - common)
    return merged([*_differing(our_map, their_map, common), grown])


def _map_of(descriptor: int) -> list[_Extent]:
    found: list[_Extent] = []
    buffer = bytearray(_HEADER.size + _AT_A_TIME * _EXTENT.size)
    start = 0
    while True:
        _HEADER.pack_into(buffer, 0, start, _TO_THE_END - start, _SYNC, 0, _AT_A_TIME, 0)
        fcntl.ioctl(descriptor, _FIEMAP, buffer)
        count = _HEADER.unpack_from(buffer)[3]
        flags = _LAST
        for number in range(count):
            logical, physical, length, flags = _EXTENT.unpack_from(buffer, _HEADER.size + number * _EXTENT.size)
            start = logical + length
            found.append(_Extent(logical, start, None if flags & _UNSURE else physical))
        if flags & _LAST:
            return found


def _differing(ours: list[_Extent], theirs: list[_Extent], end: int) -> Iterator[Run]:
    """Yield the ranges below `end` that are at different places, or at places that cannot be told."""
    edges = {edge for extent in (*ours, *theirs) for edge in (extent.start, extent.end) if edge < end}
    cuts = sorted({0, end} | edges)
    for (start, stop), mine, its in zip(pairwise(cuts), _places(ours, cuts), _places(theirs, cuts), strict=False):
        if mine is None or its is None or mine != its:
            yield start, stop - start


def _places(extents: list[_Extent], offsets: Iterable[int]) -> Iterator[int | None]:
    """Yield where on the disk the byte at each of the ascending `offsets` is; None where that cannot be told."""
    rest = iter(extents)
    extent = next(rest, None)
    for offset in offsets:
        while extent is not None and extent.end <= offset:
            extent = next(rest, None)
        if extent is None or offset < extent.start:
            yield _HOLE
        else:
            yield None if extent.place is None else extent.place + offset - extent.start
