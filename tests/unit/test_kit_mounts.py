from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from torpor.kit import files, mounts

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


def mount(place: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], check=True)


def test_nothing_is_mounted_below_a_plain_folder(tmp_path: Path) -> None:
    assert mounts.mounted_below(tmp_path) == []
    mounts.unmount_below(tmp_path)


@as_root
def test_what_is_mounted_below_is_told_innermost_first_and_unmounted(tmp_path: Path) -> None:
    outer = tmp_path / "a b"
    outer.mkdir()
    mount(outer)
    try:
        (outer / "inner").mkdir()
        mount(outer / "inner")
        assert mounts.mounted_below(tmp_path) == [os.fsencode(outer / "inner"), os.fsencode(outer)]
    finally:
        mounts.unmount_below(tmp_path)
    assert mounts.mounted_below(tmp_path) == []


@as_root
def test_what_is_mounted_at_a_place_is_the_newest_there(tmp_path: Path) -> None:
    assert mounts.mount_at(tmp_path) is None
    place = tmp_path / "a b"
    place.mkdir()
    mount(place)
    try:
        (place / "inner").mkdir()
        assert mounts.mount_at(place / "inner") is None
        first = mounts.mount_at(place)
        mount(place)
        second = mounts.mount_at(place)
        assert first is not None
        assert second is not None
        assert (first.kind, second.kind) == ("tmpfs", "tmpfs")
        assert first.device != second.device
    finally:
        mounts.unmount_below(tmp_path)


@as_root
def test_the_sweep_of_a_killed_bake_does_not_reach_into_what_it_had_mounted(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    folder = tmp_path / "images"
    inside = folder / f"{files.DRAFT_PREFIX}root" / "dev"
    inside.mkdir(parents=True)
    subprocess.run(["mount", "--bind", str(precious), str(inside)], check=True)
    try:
        assert files.sweep(folder) == [f"{files.DRAFT_PREFIX}root"]
    finally:
        mounts.unmount_below(folder)
    assert list(folder.iterdir()) == []
    assert (precious / "file").read_text() == "kept"
