from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from reflinks import reflink_volume
from torpor.kit.extents import changed_runs, data_runs
from torpor.kit.files import clone
from torpor.kit.runs import Run

MIB = 1 << 20


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with reflink_volume(tmp_path_factory.mktemp("extents")) as folder:
        yield folder


@pytest.fixture
def folder(volume: Path, request: pytest.FixtureRequest) -> Path:
    """A folder of the test's own where reflinks work."""
    path = volume / str(request.node.name)
    path.mkdir()
    return path


@pytest.fixture
def base(folder: Path) -> Path:
    """Data, a hole and data, a MiB each."""
    return a_file(folder / "base")


def a_file(path: Path) -> Path:
    with path.open("wb") as file:
        file.write(os.urandom(MIB))
        file.seek(2 * MIB)
        file.write(os.urandom(MIB))
    return path


def differing(one: Path, other: Path) -> list[int]:
    """Which pages of the first differ from the second, by their bytes."""
    ours, theirs = one.read_bytes(), other.read_bytes()
    return [at for at in range(0, len(ours), 4096) if ours[at : at + 4096] != theirs[at : at + 4096]]


def covers(runs: tuple[Run, ...], pages: list[int]) -> bool:
    return all(any(start <= page < start + length for start, length in runs) for page in pages)


def write(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_the_ranges_of_data_are_told_from_holes(folder: Path, base: Path) -> None:
    with base.open("rb") as file:
        assert [*data_runs(file.fileno(), 0, 3 * MIB)] == [(0, MIB), (2 * MIB, MIB)]
        assert [*data_runs(file.fileno(), 4096, 2 * MIB)] == [(4096, MIB - 4096)]
        assert [*data_runs(file.fileno(), MIB, 2 * MIB)] == []
        assert [*data_runs(file.fileno(), 5 * MIB, 6 * MIB)] == []


def test_a_clone_has_changed_nowhere(folder: Path, base: Path) -> None:
    clone(base, folder / "clone")
    assert changed_runs(folder / "clone", base) == ()


def test_what_was_written_over_a_clone_is_found_and_little_else(folder: Path, base: Path) -> None:
    ours = folder / "clone"
    clone(base, ours)
    write(ours, 100, b"a few bytes")
    write(ours, MIB + 65536, b"in the hole")
    write(ours, 3 * MIB - 4096, b"x" * 4096)
    runs = changed_runs(ours, base)
    assert runs is not None
    pages = differing(ours, base)
    assert len(pages) == 3
    assert covers(runs, pages)
    assert sum(length for _, length in runs) <= MIB // 2


def test_what_a_clone_lost_is_found(folder: Path, base: Path) -> None:
    ours = folder / "clone"
    ours.touch()
    os.truncate(ours, 3 * MIB)
    assert changed_runs(ours, base) == ((0, MIB), (2 * MIB, MIB))


def test_what_was_written_over_the_base_is_found_too(folder: Path, base: Path) -> None:
    clone(base, folder / "clone")
    write(base, 2 * MIB, b"x")
    runs = changed_runs(folder / "clone", base)
    assert runs is not None
    assert covers(runs, [2 * MIB])


@pytest.mark.parametrize("size", [3 * MIB + 5, 8 * MIB])
def test_what_a_file_grew_by_is_changed(folder: Path, base: Path, size: int) -> None:
    clone(base, folder / "clone")
    os.truncate(folder / "clone", size)
    assert changed_runs(folder / "clone", base) == ((3 * MIB, size - 3 * MIB),)


def test_a_shorter_file_is_looked_at_to_its_end(folder: Path, base: Path) -> None:
    clone(base, folder / "clone")
    os.truncate(folder / "clone", MIB)
    assert changed_runs(folder / "clone", base) == ()


def test_space_that_was_reserved_and_not_written_may_differ(folder: Path, base: Path) -> None:
    clone(base, folder / "clone")
    descriptor = os.open(folder / "clone", os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, MIB, MIB)
    finally:
        os.close(descriptor)
    assert changed_runs(folder / "clone", base) == ((MIB, MIB),)


def test_a_file_in_more_pieces_than_are_asked_for_at_once_is_seen_whole(folder: Path) -> None:
    base, ours = folder / "base", folder / "clone"
    base.write_bytes(os.urandom(8 * MIB))
    clone(base, ours)
    for offset in range(0, 8 * MIB, 8192):  # a piece of its own for every second block
        write(ours, offset, b"x")
        if offset % MIB == 0:
            with ours.open("rb") as file:
                os.fsync(file.fileno())
    write(ours, 8 * MIB - 4096, b"the very end")
    runs = changed_runs(ours, base)
    assert runs is not None
    assert covers(runs, differing(ours, base))


def test_files_on_two_file_systems_cannot_be_told(folder: Path, base: Path, tmp_path: Path) -> None:
    shutil.copy(base, tmp_path / "far")
    assert changed_runs(tmp_path / "far", base) is None


def test_without_shared_blocks_all_data_may_differ(tmp_path: Path) -> None:
    base = a_file(tmp_path / "base")
    (tmp_path / "copy").write_bytes(base.read_bytes())
    runs = changed_runs(tmp_path / "copy", base)
    assert runs is None or covers(runs, [*range(0, MIB, 4096), *range(2 * MIB, 3 * MIB, 4096)])
