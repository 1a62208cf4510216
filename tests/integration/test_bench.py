"""`torpor bench` against the real control plane over a fake host, which is a server of another machine to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torpor import Client, Sandbox, Snapshot
from torpor.bench.plan import plan
from torpor.bench.report import COLUMNS
from torpor.bench.run import Step, measure
from torpor.bench.subject import Subject
from torpor.cli.app import run
from torpor.testing.host import FakeHost
from torpor.testing.server import running_server

Captured = pytest.CaptureFixture[str]
Bench = Callable[..., tuple[int, str, str]]


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def client(host: FakeHost, tmp_path: Path) -> Iterator[Client]:
    with running_server(tmp_path / "home", host) as (url, key), Client(url, key) as client:
        yield client


@pytest.fixture
def bench(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Captured) -> Bench:
    """Run the command and return its code, stdout and stderr."""
    monkeypatch.setenv("TORPOR_API", client.api)
    monkeypatch.setenv("TORPOR_API_KEY", (tmp_path / "home" / "key").read_text().strip())

    def call(*argv: str) -> tuple[int, str, str]:
        code = run(["bench", "--home", str(tmp_path / "home"), *argv])
        sys.stdout.flush()
        return (code, *capfd.readouterr())

    return call


def nothing_is_left(client: Client) -> bool:
    return list(Sandbox.iterate(client=client)) == [] and list(Snapshot.iterate(client=client)) == []


def test_a_run_is_told_as_a_table_with_its_circumstances(bench: Bench, client: Client) -> None:
    code, out, err = bench("--quick", "--only", "create,exec,disk")
    assert code == 0, err
    lines = out.splitlines()
    assert any(line.split()[:2] == ["guest", "agent:"] for line in lines)
    header = next(line for line in lines if line.startswith("FIGURE"))
    assert header.lower().split() == list(COLUMNS)
    assert any(line.startswith("create ") and "p50 ≤ 130, p99 ≤ 250" in line for line in lines)
    assert "disk: is only measured on the server's own machine" in lines
    assert "create: done in" in err
    assert nothing_is_left(client)


def test_a_run_is_told_as_json_and_drawn(bench: Bench, client: Client, tmp_path: Path) -> None:
    code, out, err = bench("--n", "1", "--only", "create,wake,fork", "--json", "--plot", str(tmp_path / "all.svg"))
    assert code == 0, err
    said = json.loads(out)
    assert {"create", "wake", "wake-exec", "fork-1", "fork-8"} <= set(said["figures"])
    assert said["figures"]["wake"]["n"] == 1
    assert (said["machine"], said["failed"]) == (None, {})
    assert (tmp_path / "all.svg").read_text().startswith("<svg ")
    assert nothing_is_left(client)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--only", "dance"], "--only does not know dance"),
        (["--plot", "figures.png"], "does not end in .svg"),
        (["--template", "none-such", "--only", "create"], "there is no template 'none-such'"),
    ],
)
def test_a_run_that_cannot_be_is_refused_in_a_line(bench: Bench, argv: list[str], said: str) -> None:
    code, out, err = bench(*argv)
    assert (code, out) == (1, "")
    assert said in err
    assert err.count("\n") == 1


def test_where_no_server_runs_one_is_started_and_stopped_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORPOR_API")}
    argv = [sys.executable, "-m", "torpor.cli", "bench", "--home", str(home)]
    ran = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == ("error: there is no template 'agent' (there is: none). run `torpor template build agent`\n")
    assert "listens on" in (home / "server.log").read_text()
    assert not (home / "server.json").exists()


def subject(client: Client) -> Subject:
    return Subject(client, next(view for view in client.templates.list() if view.name == "agent"))


def test_a_measure_that_fails_is_named_and_the_others_are_taken(client: Client) -> None:
    # The fake guest has no Python, which the writing of memory needs.
    report = measure(subject(client), plan("exec,checkpoints,create", 1), lambda _: None)
    assert list(report.failed) == ["checkpoints"]
    assert {figure.key for figure in report.figures} >= {"exec", "create"}
    assert nothing_is_left(client)


def test_an_interrupted_run_leaves_nothing_of_its_own_and_what_is_not_its_own(client: Client) -> None:
    ours = Sandbox.create("agent", client=client)
    measured = subject(client)

    def interrupt(step: Step) -> None:
        measured.create().snapshot()
        assert len(list(Sandbox.iterate(client=client))) == 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(measured, plan("create"), interrupt)
    assert [sandbox.id for sandbox in Sandbox.iterate(client=client)] == [ours.id]
    assert list(Snapshot.iterate(client=client)) == []
