"""The server's key file, and its secrets."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torpor.control.keys import load_or_make_key, load_or_make_secret
from torpor.errors import Failed, Forbidden
from torpor.wire.home import KEY_FILE


def test_a_key_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    key = load_or_make_key(tmp_path)
    assert re.fullmatch(r"tpr_[A-Za-z0-9_-]{43}", key)
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert load_or_make_key(tmp_path) == key


def test_keys_differ(tmp_path: Path) -> None:
    homes = [tmp_path / name for name in "ab"]
    for home in homes:
        home.mkdir()
    assert load_or_make_key(homes[0]) != load_or_make_key(homes[1])


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_key_that_others_may_read_is_refused_with_what_mends_it(tmp_path: Path, mode: int) -> None:
    load_or_make_key(tmp_path)
    (tmp_path / KEY_FILE).chmod(mode)
    with pytest.raises(Forbidden) as refused:
        load_or_make_key(tmp_path)
    assert "chmod 600" in (refused.value.hint or "")


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\xff\xfe", b"tpr_short"])
def test_a_file_that_holds_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / KEY_FILE).write_bytes(content)
    (tmp_path / KEY_FILE).chmod(0o600)
    with pytest.raises(Failed, match="holds no key"):
        load_or_make_key(tmp_path)


def test_a_secret_is_made_once_under_its_name_and_for_its_owner_only(tmp_path: Path) -> None:
    secret = load_or_make_secret(tmp_path, "links")
    assert len(secret) == 32
    assert (tmp_path / "links").stat().st_mode & 0o777 == 0o600
    assert load_or_make_secret(tmp_path, "links") == secret
    assert load_or_make_secret(tmp_path, "other") != secret
    assert sorted(file.name for file in tmp_path.iterdir()) == ["links", "other"]


@pytest.mark.parametrize("content", ["", "00" * 31, "zz" * 32, "00" * 33])
def test_a_file_that_holds_no_secret_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "links").write_text(content)
    (tmp_path / "links").chmod(0o600)
    with pytest.raises(Failed, match="holds no secret"):
        load_or_make_secret(tmp_path, "links")


def test_of_two_that_make_a_key_at_once_both_get_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: load_or_make_key(tmp_path), range(8)))) == 1
    assert [file.name for file in tmp_path.iterdir()] == [KEY_FILE]
