from __future__ import annotations

import os
from pathlib import Path

import pytest

from torpor.kit import files


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_a_file_written_whole_replaces_the_old_one_and_leaves_no_draft(tmp_path: Path) -> None:
    target = tmp_path / "key"
    files.write_whole(target, b"old")
    files.write_whole(target, b"new", mode=0o640)
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o640
    assert names(tmp_path) == {"key"}


def test_a_draft_that_fails_leaves_the_published_folder_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "template"
    with files.draft_folder(target) as draft:
        (draft / "manifest").write_text("one")

    def fail() -> None:
        with files.draft_folder(target) as draft:
            (draft / "manifest").write_text("two")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (target / "manifest").read_text() == "one"
    assert names(tmp_path) == {"template"}


def test_a_published_draft_replaces_the_old_folder_whole(tmp_path: Path) -> None:
    target = tmp_path / "template"
    for text in ("one", "two"):
        with files.draft_folder(target) as draft:
            (draft / text).write_text(text)
    assert names(target) == {"two"}
    assert names(tmp_path) == {"template"}


def test_a_removed_tree_is_gone_and_one_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "tree/deep").mkdir(parents=True)
    (tmp_path / "tree/deep/file").write_text("x")
    files.remove_tree(tmp_path / "tree")
    files.remove_tree(tmp_path / "tree")
    assert names(tmp_path) == set()


def test_sweeping_removes_the_litter_of_a_crash_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / f"{files.DRAFT_PREFIX}image-1").mkdir()
    (tmp_path / f"{files.TRASH_PREFIX}file-2").write_text("x")
    (tmp_path / "image").mkdir()
    swept = files.sweep(tmp_path)
    assert swept == [f"{files.DRAFT_PREFIX}image-1", f"{files.TRASH_PREFIX}file-2"]
    assert names(tmp_path) == {"image"}
    assert files.sweep(tmp_path / "absent") == []


def test_a_clone_has_the_same_bytes_and_its_holes_stay_holes(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as file:
        file.write(b"head")
        file.seek(64 * 1024 * 1024)
        file.write(b"tail")
        file.truncate(128 * 1024 * 1024)
    files.clone(source, target, mode=0o400)
    assert files.sha256_of(target) == files.sha256_of(source)
    assert target.stat().st_size == 128 * 1024 * 1024
    assert files.allocated_bytes(target) <= files.allocated_bytes(source) + 8192
    assert target.stat().st_mode & 0o777 == 0o400


def test_a_clone_does_not_overwrite(tmp_path: Path) -> None:
    (tmp_path / "source").write_text("new")
    (tmp_path / "target").write_text("old")
    with pytest.raises(FileExistsError):
        files.clone(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_text() == "old"


def test_an_empty_file_and_one_that_is_all_hole_can_be_cloned(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "hole").touch()
    os.truncate(tmp_path / "hole", 1024 * 1024)
    for name in ("empty", "hole"):
        files.clone(tmp_path / name, tmp_path / f"{name}-clone")
        assert (tmp_path / f"{name}-clone").read_bytes() == (tmp_path / name).read_bytes()


def test_trying_for_reflinks_leaves_nothing_behind(tmp_path: Path) -> None:
    assert files.can_reflink(tmp_path) in {True, False}
    assert names(tmp_path) == set()


def test_what_a_folder_takes_up_is_the_sum_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 4096)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/b").write_bytes(b"x" * 4096)
    assert files.allocated_bytes(tmp_path) >= 8192
    assert files.allocated_bytes(tmp_path / "absent") == 0


def test_a_new_file_is_not_written_over_another(tmp_path: Path) -> None:
    files.write_new(tmp_path / "file", b"one", mode=0o400)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o400
    with pytest.raises(FileExistsError):
        files.write_new(tmp_path / "file", b"two")
    assert (tmp_path / "file").read_bytes() == b"one"


def test_a_folder_is_replaced_in_one_step_or_stays(tmp_path: Path) -> None:
    target = tmp_path / "base"

    def fail() -> None:
        with files.replaced_folder(target) as draft:
            (draft / "three").write_text("three")
            raise RuntimeError

    for text in ("one", "two"):
        with files.replaced_folder(target) as draft:
            (draft / text).write_text(text)
            assert target.exists() == (text == "two")
    with pytest.raises(RuntimeError):
        fail()
    assert names(target) == {"two"}
    assert names(tmp_path) == {"base"}


def test_what_was_made_aside_vanishes_unless_it_got_another_name(tmp_path: Path) -> None:
    with files.aside(tmp_path / "kept") as draft:
        draft.rename(tmp_path / "kept")
    with files.aside(tmp_path / "left") as draft:
        (draft / "file").write_text("x")
    assert names(tmp_path) == {"kept"}
