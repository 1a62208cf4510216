"""Checksums of a file, block by block, that can be brought up to date where the file was changed.

The sums are the CRC-32 of each block, four bytes each, little-endian, one after the other; the last block may be short.
They find damage, not intent. All functions here block, read the file, and raise OSError.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

from torpor.kit.extents import data_runs
from torpor.kit.runs import Run, merged

_SUM_BYTES = 4
_READ_BYTES = 1 << 20


def sums_of(path: Path, block: int) -> bytes:
    """Return the sums of a whole file in blocks of `block` bytes. Holes are not read."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        sums = bytearray(_zeros(block) * _count(size, block))
        _recompute(file.fileno(), block, sums, [*data_runs(file.fileno(), 0, size), (size - 1, 1)])
        return bytes(sums)


def updated(sums: bytes, path: Path, block: int, runs: Iterable[Run]) -> bytes:
    """Return the sums of a file of which `sums` were the sums before only `runs` of it were changed.

    The file may have become longer or shorter.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        count = _count(size, block)
        known = min(len(sums) // _SUM_BYTES, count)
        result = bytearray(sums[: known * _SUM_BYTES] + _zeros(block) * (count - known))
        # A block that is or was the last may have another length now, with no run that tells.
        ends = [(known * block - 1, 1), (size - 1, 1)]
        _recompute(file.fileno(), block, result, [*runs, *data_runs(file.fileno(), known * block, size), *ends])
        return bytes(result)


def first_difference(path: Path, block: int, sums: bytes) -> int | None:
    """Return the offset of the first block of a file that is not as its sums say, None if all are.

    A file that is too short or too long differs where the shorter of both ends, if not before.
    """
    found = sums_of(path, block)
    if found == sums:
        return None
    shorter = min(len(found), len(sums))
    places = range(0, shorter, _SUM_BYTES)
    differing = (at for at in places if found[at : at + _SUM_BYTES] != sums[at : at + _SUM_BYTES])
    return next(differing, shorter) // _SUM_BYTES * block


def _count(size: int, block: int) -> int:
    return -(-size // block)


def _zeros(block: int) -> bytes:
    return struct.pack("<I", zlib.crc32(bytes(block)))


def _recompute(descriptor: int, block: int, sums: bytearray, runs: Iterable[Run]) -> None:
    """Set the sums of all blocks of the file that `runs` touch; what they name outside of it is ignored."""
    count = len(sums) // _SUM_BYTES
    # Memory that begins at a page: reading to other places takes several times as long.
    buffer = memoryview(mmap.mmap(-1, max(1, _READ_BYTES // block) * block))
    for first, number in merged(_blocks(run, block, count) for run in runs):
        for start in range(first, first + number, len(buffer) // block):
            data = buffer[: (first + number - start) * block]
            found = _sums(data[: os.preadv(descriptor, [data], start * block)], block)
            if len(found) < len(data) // block * _SUM_BYTES:
                raise OSError(errno.EIO, "the file became shorter while it was read")
            sums[start * _SUM_BYTES : start * _SUM_BYTES + len(found)] = found


def _blocks(run: Run, block: int, count: int) -> Run:
    """Return the blocks that a run of bytes touches, as a run of blocks of a file that has `count`."""
    first, end = max(0, run[0] // block), min(count, _count(run[0] + run[1], block))
    return first, end - first


def _sums(data: memoryview, block: int) -> bytes:
    found = [zlib.crc32(data[at : at + block]) for at in range(0, len(data), block)]
    return struct.pack(f"<{len(found)}I", *found)
