from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import pytest

from torpor.kit.runs import Written, merged
from torpor.kit.sums import first_difference, sums_of, updated

BLOCK = 4096


def plain_sums(data: bytes, block: int = BLOCK) -> bytes:
    """The definition, in its shortest form."""
    return b"".join(struct.pack("<I", zlib.crc32(data[at : at + block])) for at in range(0, len(data), block))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Ten blocks and a bit: data, a hole of five blocks, data."""
    path = tmp_path / "file"
    with path.open("wb") as writer:
        writer.write(os.urandom(2 * BLOCK))
        writer.seek(7 * BLOCK)
        writer.write(os.urandom(3 * BLOCK + 100))
    return path


def test_runs_that_touch_or_overlap_become_one() -> None:
    assert merged([(8, 4), (0, 4), (4, 2), (9, 10), (30, 0)]) == ((0, 6), (8, 11))
    assert Written(64, ((0, 6), (8, 11))).written_bytes == 17


@pytest.mark.parametrize("block", [BLOCK, 3 * BLOCK, 65536])
def test_the_sums_of_a_file_with_holes_are_those_of_its_bytes(file: Path, block: int) -> None:
    assert sums_of(file, block) == plain_sums(file.read_bytes(), block)


@pytest.mark.parametrize("size", [0, 1, BLOCK, BLOCK + 1])
def test_a_file_that_is_one_hole_has_sums_of_its_length(tmp_path: Path, size: int) -> None:
    path = tmp_path / "hole"
    path.touch()
    os.truncate(path, size)
    assert sums_of(path, BLOCK) == plain_sums(bytes(size))
    assert first_difference(path, BLOCK, plain_sums(bytes(size))) is None


def test_a_file_longer_than_one_read_has_all_its_sums(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(os.urandom((5 << 20) + 17))
    assert sums_of(path, BLOCK) == plain_sums(path.read_bytes())


def test_sums_are_brought_up_to_date_by_reading_what_was_changed(file: Path) -> None:
    sums = sums_of(file, BLOCK)
    with file.open("r+b") as writer:
        writer.seek(3 * BLOCK + 4000)
        writer.write(b"x" * 200)  # the end of one block and the beginning of the next
        writer.seek(9 * BLOCK)
        writer.write(b"y")
    assert updated(sums, file, BLOCK, [(3 * BLOCK + 4000, 200), (9 * BLOCK, 1)]) == plain_sums(file.read_bytes())


def test_what_no_run_names_is_not_read_again(file: Path) -> None:
    sums = sums_of(file, BLOCK)
    with file.open("r+b") as writer:
        writer.write(b"changed")
    assert updated(sums, file, BLOCK, [(8 * BLOCK, 1)]) == sums
    assert updated(sums, file, BLOCK, [(0, 1)]) != sums


@pytest.mark.parametrize("size", [0, 50, BLOCK, 9 * BLOCK + 5, 10 * BLOCK + 50, 11 * BLOCK, 400 * BLOCK + 3])
def test_sums_follow_a_file_that_became_shorter_or_longer(file: Path, size: int) -> None:
    sums = sums_of(file, BLOCK)
    os.truncate(file, size)
    assert updated(sums, file, BLOCK, []) == plain_sums(file.read_bytes())


def test_sums_follow_a_file_that_grew_by_data(file: Path) -> None:
    sums = sums_of(file, BLOCK)
    with file.open("ab") as writer:
        writer.write(os.urandom(3 * BLOCK))
    assert updated(sums, file, BLOCK, []) == plain_sums(file.read_bytes())


def test_runs_beyond_the_end_are_ignored(file: Path) -> None:
    sums = sums_of(file, BLOCK)
    assert updated(sums, file, BLOCK, [(5 * BLOCK, 1 << 40), (1 << 41, 5)]) == sums


def test_one_flipped_bit_is_found_and_its_block_named(file: Path) -> None:
    sums = sums_of(file, BLOCK)
    assert first_difference(file, BLOCK, sums) is None
    data = bytearray(file.read_bytes())
    data[8 * BLOCK + 77] ^= 4
    file.write_bytes(data)
    assert first_difference(file, BLOCK, sums) == 8 * BLOCK


def test_data_where_a_hole_was_is_found(file: Path) -> None:
    sums = sums_of(file, BLOCK)
    with file.open("r+b") as writer:
        writer.seek(4 * BLOCK)
        writer.write(b"x")
    assert first_difference(file, BLOCK, sums) == 4 * BLOCK


@pytest.mark.parametrize(
    ("size", "where"), [(8 * BLOCK, 8 * BLOCK), (10 * BLOCK + 99, 10 * BLOCK), (12 * BLOCK, 10 * BLOCK)]
)
def test_a_file_of_another_length_differs(file: Path, size: int, where: int) -> None:
    sums = sums_of(file, BLOCK)
    os.truncate(file, size)
    assert first_difference(file, BLOCK, sums) == where


def test_a_file_that_lost_or_gained_whole_blocks_differs_where_the_shorter_ends(tmp_path: Path) -> None:
    path = tmp_path / "whole"
    path.write_bytes(b"x" * 3 * BLOCK)
    sums = sums_of(path, BLOCK)
    path.write_bytes(b"x" * 4 * BLOCK)
    assert first_difference(path, BLOCK, sums) == 3 * BLOCK
