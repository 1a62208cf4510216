"""Bringing pages of a memory image up to date: only what differs is written, and pages of zeros become holes."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from itertools import groupby

from torpor.errors import FreezeFailed, OutOfSpace
from torpor.kit.extents import data_runs
from torpor.kit.files import is_full
from torpor.kit.runs import Run

PAGE = mmap.PAGESIZE
# So much is read, compared and written at a time.
STEP = 1 << 20
_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE = 1, 2
_MANY = 1 << 16
_ZEROS = bytes(STEP)
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def saving_memory_of(name: str) -> Iterator[None]:
    """Raise what the system says while a machine's memory image is written as OutOfSpace or FreezeFailed."""
    try:
        yield
    except OSError as error:
        what = f"the memory of {name} was not saved"
        if is_full(error):
            raise OutOfSpace(f"{what}: the host's disk is full", hint="free space in the data directory") from error
        raise FreezeFailed(f"{what}: {error}") from error


class _Change(Enum):
    """How a page is not as it was."""

    NONE = auto()
    BYTES = auto()
    ZEROS = auto()


class Image:
    """An open memory image whose pages are brought up to date.

    `like` is another open file that holds what the image held at first: see `Machine.save_memory`.
    """

    def __init__(self, descriptor: int, like: int) -> None:
        self._descriptor, self._like = descriptor, like
        # Bytes of this type are compared as fast as memory is read. They begin at a page, see `page_buffer`.
        self._old = bytearray(STEP + PAGE)
        self._start = -ctypes.addressof(ctypes.c_char.from_buffer(self._old)) % PAGE

    def update(self, offset: int, pages: memoryview) -> Iterator[Run]:
        """Bring whole pages at `offset`, STEP bytes at most and each only once, to what is given; yield what differed.

        Raises OSError.
        """
        self._read_old(offset, len(pages))
        if not self._old.startswith(pages, self._start):
            yield from self._write_differing(offset, pages)

    def _read_old(self, offset: int, length: int) -> None:
        old = memoryview(self._old)[self._start : self._start + length]
        # Asking whether it is a hole costs as much as reading some pages.
        if length >= _MANY and next(data_runs(self._like, offset, offset + length), None) is None:
            old[:] = _ZEROS[:length]
        elif os.preadv(self._like, [old], offset) != length:
            raise OSError(errno.EIO, "the image is too short")

    def _write_differing(self, offset: int, pages: memoryview) -> Iterator[Run]:
        at = 0
        for change, same in groupby(self._changes(pages)):
            length = sum(1 for _ in same) * PAGE
            if change is _Change.BYTES:
                _write(self._descriptor, pages[at : at + length], offset + at)
            elif change is _Change.ZEROS:
                _make_hole(self._descriptor, offset + at, length)
            if change is not _Change.NONE:
                yield offset + at, length
            at += length

    def _changes(self, pages: memoryview) -> list[_Change]:
        # For tens of thousands of pages in a pause: nothing in here is looked up twice.
        nothing, zeros, some = _Change.NONE, _Change.ZEROS, _Change.BYTES
        is_old, is_zeros, start = self._old.startswith, _ZEROS.startswith, self._start
        return [
            nothing if is_old(page := pages[at : at + PAGE], start + at) else zeros if is_zeros(page) else some
            for at in range(0, len(pages), PAGE)
        ]


def page_buffer() -> memoryview:
    """Return STEP bytes that begin at a page: reading pages into any other place takes up to eight times as long."""
    return memoryview(mmap.mmap(-1, STEP))


def _write(image: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(image, data, offset)
        data, offset = data[written:], offset + written


def _make_hole(image: int, offset: int, length: int) -> None:
    """Give the space of a range back; where the file system cannot, write zeros."""
    mode = _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE
    if _libc.fallocate(image, mode, ctypes.c_long(offset), ctypes.c_long(length)) == 0:
        return
    number = ctypes.get_errno()
    if number not in (errno.EOPNOTSUPP, errno.ENOSYS):
        raise OSError(number, os.strerror(number))
    _write(image, memoryview(_ZEROS)[:length], offset)
