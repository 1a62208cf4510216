"""A stream's newest bytes, by offset: in memory, in a file, and where the file gets no room."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor_guest.spool import Spool

MOST, HELD = 1000, 64
LIMITS = [None, 0, 10, HELD, 100, 333, MOST]


@contextmanager
def files_of_at_most(size: int | None) -> Iterator[None]:
    """Let no file of this process become larger, as on a disk without room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def kept(spool: Spool) -> bytes:
    """Return all that a spool keeps, read in odd pieces."""
    found, room = b"", memoryview(bytearray(77))
    while (size := spool.copy(spool.start + len(found), room)) > 0:
        found += bytes(room[:size])
    return found


def numbered(start: int, size: int) -> bytes:
    """Return bytes that tell where in their stream they stand."""
    return bytes((start + at) * 31 % 251 for at in range(size))


@pytest.mark.parametrize("limit", LIMITS)
@given(sizes=st.lists(st.integers(1, 200), max_size=40), heard=st.lists(st.integers(0, 300), min_size=40, max_size=40))
def test_what_is_kept_is_what_was_written_and_nothing_needed_is_dropped(
    limit: int | None, sizes: list[int], heard: list[int]
) -> None:
    """Somebody listens, now slowly and now fast, and no more is written than there is room for."""
    spool, written, needed = Spool(MOST, HELD), b"", 0
    with files_of_at_most(limit):
        for size, more in zip(sizes, heard, strict=False):
            data = numbered(len(written), max(0, min(size, spool.room(needed))))
            written += data
            if data:
                spool.add(data, needed)
            assert spool.end == len(written)
            assert spool.start <= needed
            assert kept(spool) == written[spool.start :]
            needed = min(needed + more, len(written))
            if needed == len(written):
                assert spool.room(needed) > 0
        spool.close()
    assert spool.size == 0


@pytest.mark.parametrize("limit", LIMITS)
@given(sizes=st.lists(st.integers(1, 200), max_size=60))
def test_where_nobody_listens_there_is_always_room_and_the_newest_is_kept(limit: int | None, sizes: list[int]) -> None:
    spool, written = Spool(MOST, HELD), b""
    with files_of_at_most(limit):
        for size in sizes:
            data = numbered(len(written), min(size, spool.room(spool.end)))
            assert data
            written += data
            spool.add(data, spool.end)
            assert kept(spool) == written[spool.start :]
            assert spool.size <= MOST + 200
        if limit is None or limit >= MOST:
            assert spool.size >= min(len(written), MOST)
        spool.close()


def test_what_is_needed_is_kept_even_beyond_what_there_is_room_for() -> None:
    spool, data = Spool(MOST, HELD), numbered(0, 3 * MOST)
    for start in range(0, len(data), 100):
        spool.add(data[start : start + 100], 0)
    assert (spool.start, kept(spool)) == (0, data)
    assert spool.room(0) < 0
    spool.add(b"end", 3 * MOST)
    assert kept(spool) == (data + b"end")[spool.start :]
    assert spool.size <= MOST
    spool.close()


def test_a_little_output_needs_no_file() -> None:
    before = len(os.listdir("/proc/self/fd"))
    spool = Spool(MOST, HELD)
    spool.add(b"x" * HELD, 0)
    assert len(os.listdir("/proc/self/fd")) == before
    spool.add(b"x", 0)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    spool.close()
    assert len(os.listdir("/proc/self/fd")) == before
