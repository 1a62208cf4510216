"""How files are brought into a guest by a build: what is replaced, what stays, and whose they are."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from oci_images import a_file, archive_of
from torpor_guest import unpack as program
from torpor_guest.accounts import Account
from torpor_guest.unpack import unpack

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def a_folder(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return a_file(name, type=tarfile.DIRTYPE, mode=mode)


def bring(root: Path, *entries: tuple[tarfile.TarInfo, bytes], owner: Account | None = None) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive_of(*entries)), mode="r|") as archive:
        unpack(archive, owner, str(root))


@needs_root
def test_files_come_with_their_mode_and_missing_folders_are_made(tmp_path: Path) -> None:
    bring(tmp_path, a_file("a/b/run.sh", b"x", 0o755, mtime=1_000_000), a_folder("c", 0o700), a_file("c/d", b"y"))
    status = (tmp_path / "a/b/run.sh").stat()
    assert (status.st_mode & 0o7777, status.st_mtime, status.st_uid) == (0o755, 1_000_000, 0)
    assert ((tmp_path / "a/b").stat().st_mode & 0o777, (tmp_path / "c").stat().st_mode & 0o777) == (0o755, 0o700)


@needs_root
def test_a_file_is_replaced_and_a_folder_keeps_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir(mode=0o711)
    (tmp_path / "kept" / "other").write_text("other")
    (tmp_path / "kept" / "file").write_text("old")
    bring(tmp_path, a_folder("kept", 0o700), a_file("kept/file", b"new"))
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o711
    assert {path.name: path.read_text() for path in (tmp_path / "kept").iterdir()} == {"other": "other", "file": "new"}


@needs_root
def test_a_link_in_the_way_of_a_path_is_followed_and_one_in_a_file_s_place_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "target").write_text("untouched")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "file").symlink_to("target")
    bring(tmp_path, a_folder("link"), a_file("link/file", b"new"))
    assert (tmp_path / "link").is_symlink()
    assert not (tmp_path / "real" / "file").is_symlink()
    assert [(tmp_path / "real" / name).read_text() for name in ("file", "target")] == ["new", "untouched"]


@needs_root
def test_with_an_owner_all_of_it_is_his_but_not_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    owner = Account("app", 7, 8, (8,), b"/", b"/bin/sh")
    bring(tmp_path, a_file("there/new/file", b"x"), owner=owner)
    owners = [((tmp_path / name).stat().st_uid, (tmp_path / name).stat().st_gid) for name in ("there", "there/new")]
    assert owners == [(0, 0), (7, 8)]
    assert (tmp_path / "there/new/file").stat().st_uid == 7


@needs_root
def test_links_of_an_archive_are_made(tmp_path: Path) -> None:
    soft, hard = (
        a_file(name, type=kind, linkname="one") for name, kind in (("soft", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE))
    )
    bring(tmp_path, a_file("one", b"x"), soft, hard)
    assert (tmp_path / "soft").readlink() == Path("one")
    assert (tmp_path / "hard").stat().st_ino == (tmp_path / "one").stat().st_ino


@needs_root
def test_a_folder_in_the_way_of_a_file_is_told_and_stays(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    with pytest.raises(IsADirectoryError, match="a folder is in the way"):
        bring(tmp_path, a_file("here", b"x"))
    assert (tmp_path / "here").is_dir()


@needs_root
def test_the_program_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    argv = [sys.executable, "-I", "-S", program.__file__, "--into", str(tmp_path)]
    good = subprocess.run(argv, input=archive_of(a_file("a", b"x")), capture_output=True, check=False)
    assert (good.returncode, (tmp_path / "a").read_bytes()) == (0, b"x")
    for words, data in ((["--chown", "no-such-user"], archive_of()), ([], b"no archive" * 100)):
        bad = subprocess.run([*argv, *words], input=data, capture_output=True, check=False)
        assert bad.returncode == 1
        assert bad.stderr.startswith(b"unpack: ")
        assert bad.stderr.count(b"\n") == 1
