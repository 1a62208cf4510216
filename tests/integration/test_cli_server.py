"""`serve`, `up` and `down` as processes of their own, on an empty data directory."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from torpor import Client, Sandbox
from torpor.cli.record import began

PATIENCE_S = 60


def torpor(home: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torpor.cli", *argv],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORPOR_API")}
    return kept | {"TORPOR_HOME": str(home)}


@contextmanager
def serving(home: Path, *argv: str) -> Iterator[subprocess.Popen[str]]:
    """A server that has said where it listens."""
    command = [sys.executable, "-m", "torpor.cli", "serve", "--port", "0", *argv]
    with subprocess.Popen(
        command, env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert "listens on http://127.0.0.1:" in process.stdout.readline()
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_served_home_is_found_by_clients_until_a_signal_ends_it_cleanly(home: Path, number: signal.Signals) -> None:
    with serving(home) as process:
        record = json.loads((home / "server.json").read_text())
        assert record["pid"] == process.pid
        with Client(record["url"], (home / "key").read_text().strip()) as client:
            assert list(Sandbox.list(client=client)) == []
        assert json.loads(torpor(home, "list", "--json").stdout) == []
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert not (home / "server.json").exists()


def test_a_second_server_on_one_home_is_refused_and_harms_nothing(home: Path) -> None:
    with serving(home):
        before = (home / "server.json").read_bytes()
        second = torpor(home, "serve", "--port", "0")
        assert (second.returncode, second.stdout) == (1, "")
        assert "is in use by process" in second.stderr
        assert "Traceback" not in second.stderr
        assert (home / "server.json").read_bytes() == before


def test_a_port_that_is_taken_is_said_before_anything_else_starts(home: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused = torpor(home, "serve", "--port", str(port))
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"error: port {port} on 127.0.0.1 cannot be used: address already in use.")
    assert refused.stderr.count("\n") == 1
    assert not home.exists()


def test_an_address_that_others_reach_is_refused(home: Path) -> None:
    refused = torpor(home, "serve", "--host", "0.0.0.0", "--port", "0")
    assert (refused.returncode, refused.stderr.count("\n"), home.exists()) == (1, 1, False)
    assert "--insecure-http" in refused.stderr


def test_nobody_is_believed_who_says_to_come_from_elsewhere_or_to_mean_another_server(home: Path) -> None:
    with serving(home):
        url, key = json.loads((home / "server.json").read_text())["url"], (home / "key").read_text().strip()
        with httpx2.Client(base_url=url, trust_env=False) as http:
            told = {"x-forwarded-for": "203.0.113.7", "forwarded": "for=203.0.113.7"}
            assert http.get("/version", headers=told).status_code == 200  # it comes from here all the same
            http.delete("/v1/templates/none", headers={"authorization": f"Bearer {key}", **told})
            (entry,) = http.get("/v1/audit", headers={"authorization": f"Bearer {key}"}).json()["items"]
            assert entry["client"] == "127.0.0.1"
            rebound = http.get("/v1/me", headers={"authorization": f"Bearer {key}", "host": "evil.example"})
            assert (rebound.status_code, rebound.json()["code"]) == (421, "misdirected")
        with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0)) as old:
            old.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert b" 400 " in old.makefile("rb").readline()


def test_up_starts_once_and_down_stops(home: Path) -> None:
    first = torpor(home, "up", "--port", "0", "--json")
    try:
        begun = json.loads(first.stdout)
        assert begun["started"] is True
        assert json.loads(torpor(home, "up", "--json").stdout) == {"url": begun["url"], "started": False}
        assert torpor(home, "list").returncode == 0
        pid = json.loads((home / "server.json").read_text())["pid"]
    finally:
        down = torpor(home, "down", "--json")
    assert json.loads(down.stdout) == {"stopped": True}
    assert began(pid) is None
    assert json.loads(torpor(home, "down", "--json").stdout) == {"stopped": False}
    assert "listens on" in (home / "server.log").read_text()


def test_up_says_why_a_server_did_not_start(home: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        refused = torpor(home, "up", "--port", str(other.getsockname()[1]))
    assert refused.returncode == 1
    assert "cannot be used: address already in use" in refused.stderr
    assert "server.log" in refused.stderr


def test_down_leaves_a_process_alone_that_is_not_the_server(home: Path) -> None:
    home.mkdir()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as bystander:
        (home / "server.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": bystander.pid, "began": 1}))
        assert json.loads(torpor(home, "down", "--json").stdout) == {"stopped": False}
        assert bystander.poll() is None
