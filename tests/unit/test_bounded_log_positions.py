"""A log of bounded size that is followed: what came after a position, whatever was renamed or dropped meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from torpor.vmm.bounded_log import read_log_after


def older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def test_what_came_after_a_position_is_read_once_over_a_change_of_files(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    assert read_log_after(log, "") == (b"", "")
    log.write_bytes(b"one ")
    data, position = read_log_after(log, "")
    assert data == b"one "
    assert read_log_after(log, position) == (b"", position)
    with log.open("ab") as growing:
        growing.write(b"two ")
    log.replace(older(log))
    log.write_bytes(b"three ")
    data, position = read_log_after(log, position)
    assert data == b"two three "
    assert read_log_after(log, position)[0] == b""
    assert read_log_after(log, "")[0] == b"one two three "


def test_while_there_is_no_new_file_yet_the_older_one_is_read_on(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    log.write_bytes(b"one ")
    _, position = read_log_after(log, "")
    with log.open("ab") as growing:
        growing.write(b"two ")
    log.replace(older(log))
    data, position = read_log_after(log, position)
    assert data == b"two "
    log.write_bytes(b"three ")
    assert read_log_after(log, position)[0] == b"three "


@pytest.mark.parametrize("position", ["x", "1:2", "0:", ":", "-1:5", "1:" + "9" * 5000, "1:\u0661"])
def test_a_position_that_is_none_means_all_that_is_kept(tmp_path: Path, position: str) -> None:
    log = tmp_path / "console.log"
    older(log).write_bytes(b"one ")
    log.write_bytes(b"two ")
    assert read_log_after(log, position)[0] == b"one two "


def test_a_position_behind_the_end_means_all_that_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    log.write_bytes(b"one ")
    inode = log.stat().st_ino
    assert read_log_after(log, f"{inode}:99")[0] == b"one "
