"""Where the SDK looks for the server and its key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torpor import HostUnreachable, InvalidRequest, Unauthenticated
from torpor.sdk.settings import default_home, locate


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TORPOR_API", "TORPOR_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORPOR_HOME", str(tmp_path))
    return tmp_path


def running(home: Path, url: str = "http://127.0.0.1:7070") -> None:
    (home / "server.json").write_text(json.dumps({"url": url}))
    (home / "key").write_text("local-key\n")


def test_a_local_server_is_found_without_configuration(home: Path) -> None:
    running(home)
    server = locate()
    assert (server.url, server.key) == ("http://127.0.0.1:7070", "local-key")


def test_arguments_come_before_the_environment_and_that_before_files(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(home)
    monkeypatch.setenv("TORPOR_API", "https://env.example/")
    monkeypatch.setenv("TORPOR_API_KEY", "env-key")
    assert (locate().url, locate().key) == ("https://env.example", "env-key")
    assert (locate("http://arg.example", "arg").url, locate(key="arg").key) == ("http://arg.example", "arg")


def test_the_local_key_is_never_sent_to_another_machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running(home)
    monkeypatch.setenv("TORPOR_API", "https://elsewhere.example")
    with pytest.raises(Unauthenticated, match=r"no API key for https://elsewhere\.example"):
        locate()


def test_no_server_says_how_to_start_one() -> None:
    with pytest.raises(HostUnreachable, match="no Torpor server runs here") as caught:
        locate()
    assert caught.value.hint == "start it with `torpor up`"


def test_a_damaged_record_is_said_to_be_damaged(home: Path) -> None:
    (home / "server.json").write_text("[]")
    with pytest.raises(HostUnreachable, match="damaged"):
        locate()


def test_a_record_without_a_key_is_unauthenticated(home: Path) -> None:
    running(home)
    (home / "key").unlink()
    with pytest.raises(Unauthenticated):
        locate()


@pytest.mark.parametrize("url", ["127.0.0.1:7070", "ftp://x", "http://", "http://[::1", "/socket"])
def test_a_malformed_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="not an http"):
        locate(url, "k")


def test_the_key_is_not_shown() -> None:
    assert "secret" not in repr(locate("http://127.0.0.1:1", "secret"))


def test_the_data_directory_follows_its_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert default_home() == tmp_path
    monkeypatch.delenv("TORPOR_HOME")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_home() == Path("/data/torpor")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_home() == Path("/home/someone/.local/share/torpor")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert default_home() == Path("/var/lib/torpor")
