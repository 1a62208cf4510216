"""`torpor explore` on the command line, against the real control plane over a fake host."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torpor import Client, Sandbox
from torpor.cli.app import run
from torpor.testing.server import running_server

Torpor = Callable[..., tuple[int, str, str]]
PATIENCE_S = 60


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, str]]:
    with running_server(tmp_path / "home") as told:
        yield told


@pytest.fixture
def torpor(server: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Torpor:
    """Run one command line and return its code, stdout and stderr."""
    monkeypatch.setenv("TORPOR_API", server[0])
    monkeypatch.setenv("TORPOR_API_KEY", server[1])

    def call(*argv: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(argv)
        return (code, *capfd.readouterr())

    return call


@pytest.fixture
def client(server: tuple[str, str]) -> Iterator[Client]:
    with Client(*server) as client:
        yield client


@pytest.fixture
def box(client: Client) -> Sandbox:
    return Sandbox.create("agent", client=client)


def living(client: Client) -> set[str]:
    return {one.id for one in Sandbox.iterate(client=client)}


def test_the_winners_id_is_all_that_is_printed(torpor: Torpor, client: Client, box: Sandbox) -> None:
    code, out, err = torpor("explore", box.id, "echo 3", "echo so: 7", "exit 4", "--score-stdout-number")
    assert (code, err) == (0, "")
    winner = Sandbox.connect(out.strip(), client=client)
    assert living(client) == {box.id, winner.id}
    assert winner.metadata["fork_index"] == "1"


def test_programs_are_told_everything(torpor: Torpor, client: Client, box: Sandbox) -> None:
    score = ["--score", "count a", "--min"]
    code, out, _ = torpor("explore", box.id, "count a; count a", "count a", "false", *score, "--keep", "--json")
    told = json.loads(out)
    assert (code, told["winner"], told["reaped"], told["errors"]) == (0, told["outcomes"][0]["sandbox_id"], [], [])
    assert [(one["label"], one["score"], one["exit_code"]) for one in told["outcomes"]] == [
        ("count a", 2.0, 0),
        ("count a; count a", 3.0, 0),
        ("false", None, 1),
    ]
    assert len(living(client)) == 4


def test_without_a_winner_it_fails_and_nothing_is_left(torpor: Torpor, client: Client, box: Sandbox) -> None:
    code, out, err = torpor("explore", box.id, "false", "hang", "--timeout", "1")
    assert (code, out) == (1, "")
    assert err.startswith("error: none of 2 branches can be the winner: false: exit code 1; hang: timed out.")
    code, out, err = torpor("explore", box.id, "false", "--json")
    assert (code, json.loads(out)["winner"], json.loads(err)["code"]) == (1, None, "explore_failed")
    assert living(client) == {box.id}


def test_two_kinds_of_score_are_refused(torpor: Torpor, box: Sandbox) -> None:
    code, _, err = torpor("explore", box.id, "true", "--score", "true", "--score-stdout-number")
    assert (code, "give one of them" in err) == (1, True)
    assert torpor("explore", "nobody", "true")[0] == 1
    assert torpor("explore", box.id)[0] == 2


def test_a_person_sees_the_branches_live_and_ctrl_c_ends_them(
    server: tuple[str, str], client: Client, box: Sandbox
) -> None:
    environment = os.environ | {"TORPOR_API": server[0], "TORPOR_API_KEY": server[1], "COLUMNS": "100", "TERM": "xterm"}
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "torpor.cli", "explore", box.id, "true", "hang", "--timeout", "1h"]
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    with open(ours, "rb", buffering=0) as screen:
        seen = b""
        while not (b"ok" in seen and b"running" in seen):
            seen += screen.read(65536)
        assert b"COMMAND" in seen
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, b"")
    assert living(client) == {box.id}
