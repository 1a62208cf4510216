"""The commands that talk to a server, in this process, against the real control plane over a fake host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from torpor.cli.app import run
from torpor.testing.server import running_server

Captured = pytest.CaptureFixture[str]
Torpor = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with running_server(tmp_path_factory.mktemp("server") / "home") as told:
        yield told


@pytest.fixture
def torpor(server: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capfd: Captured) -> Torpor:
    """Run one command line and return its code, stdout and stderr."""
    monkeypatch.setenv("TORPOR_API", server[0])
    monkeypatch.setenv("TORPOR_API_KEY", server[1])

    def call(*argv: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(argv)
        sys.stdout.flush()
        sys.stderr.flush()
        return (code, *capfd.readouterr())

    return call


@pytest.fixture
def box(torpor: Torpor) -> Iterator[str]:
    code, out, _ = torpor("create", "agent", "--ttl", "10m", "-m", "run=42", "--env", "A=b")
    assert code == 0
    yield out.strip()
    torpor("rm", "-f", out.strip())


def piped(
    server: tuple[str, str], *argv: str, stdin: bytes = b"", more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a command line as a process of its own, with stdin from a pipe and `more` in its environment."""
    environment = os.environ | {"TORPOR_API": server[0], "TORPOR_API_KEY": server[1]} | dict(more or {})
    command = [sys.executable, "-m", "torpor.cli", *argv]
    return subprocess.run(command, env=environment, input=stdin, capture_output=True, check=False)


def test_create_prints_the_id_alone(torpor: Torpor) -> None:
    code, out, err = torpor("create", "--name", "alone", "--persistent")
    assert (code, err) == (0, "")
    assert out.startswith("sbx-")
    assert len(out.split()) == 1
    shown = json.loads(torpor("show", "alone", "--json")[1])
    assert (shown["id"], shown["name"], shown["persistent"], shown["state"]) == (out.strip(), "alone", True, "running")
    assert torpor("rm", "alone")[0] == 0
    assert torpor("show", "alone")[0] == 1


def test_list_is_a_table_or_json(torpor: Torpor, box: str) -> None:
    code, out, _ = torpor("list", "-m", "run=42")
    assert code == 0
    assert out.split("\n")[0].split() == ["ID", "NAME", "TEMPLATE", "STATE", "AGE", "ENDS", "IN", "METADATA"]
    assert box in out
    assert "run=42" in out
    listed = json.loads(torpor("list", "--json", "--state", "running", "--limit", "1")[1])
    assert [one["id"] for one in listed] == [box]
    assert torpor("list", "-m", "run=other")[:2] == (0, "")


def test_show_tells_everything(torpor: Torpor, box: str) -> None:
    out = torpor("show", box)[1]
    for word in (box, "agent", "running", "run=42", "512 MiB", "90 ms"):
        assert word in out


def test_exec_passes_output_and_code_through(torpor: Torpor, box: str) -> None:
    assert torpor("exec", box, "echo out; echo err >&2; exit 7") == (7, "out\n", "err\n")
    assert torpor("exec", box, "--", "echo", "a  b", "$A") == (0, "a  b $A\n", "")
    assert torpor("exec", "--cwd", "/work", "-e", "B=c", box, "pwd; echo $A $B") == (0, "/work\nb c\n", "")


def test_exec_json_is_the_result(torpor: Torpor, box: str) -> None:
    code, out, _ = torpor("exec", box, "--json", "echo out; exit 3")
    said = json.loads(out)
    assert (code, said["stdout"], said["exit_code"], said["truncated"]) == (3, "out\n", 3, False)
    assert set(said) == {"stdout", "stderr", "exit_code", "duration_ms", "truncated", "signal", "oom_killed"}


def test_exec_that_takes_too_long_ends_with_124(torpor: Torpor, box: str) -> None:
    code, out, err = torpor("exec", box, "--timeout", "0.2", "echo begun; hang")
    assert (code, out) == (124, "begun\n")
    assert err.startswith("error: command timeout after 0.2 s")


def test_exec_takes_what_is_piped_in_and_gives_exact_bytes(server: tuple[str, str], box: str) -> None:
    data = bytes(range(256)) * 300
    ran = piped(server, "exec", box, "cat", stdin=data)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, data, b"")


def test_exec_does_not_read_stdin_when_told_so(server: tuple[str, str], box: str) -> None:
    assert piped(server, "exec", "-n", box, "cat", stdin=b"unread").stdout == b""


def test_exec_refuses_more_stdin_than_fits(server: tuple[str, str], box: str) -> None:
    ran = piped(server, "exec", box, "cat", stdin=b"x" * (16 * 1024 * 1024 + 1))
    assert ran.returncode == 1
    assert b"more than 16 MiB" in ran.stderr
    assert b"with -i it is passed on" in ran.stderr


def test_a_reader_that_leaves_early_ends_the_command_quietly(server: tuple[str, str], box: str) -> None:
    environment = os.environ | {"TORPOR_API": server[0], "TORPOR_API_KEY": server[1]}
    argv = [sys.executable, "-m", "torpor.cli", "exec", "-n", box, "blob 20000000"]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(3) == b"aaa"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_reader_that_leaves_ends_what_goes_on_for_ever_quietly(server: tuple[str, str], torpor: Torpor) -> None:
    environment = os.environ | {"TORPOR_API": server[0], "TORPOR_API_KEY": server[1]}
    argv = [sys.executable, "-m", "torpor.cli", "logs", "--events", "--follow"]
    assert [torpor("create", "--name", "passing")[0], torpor("rm", "passing")[0]] == [0, 0]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() != b""
        process.stdout.close()
        while process.poll() is None:
            assert [torpor("create", "--name", "passing")[0], torpor("rm", "passing")[0]] == [0, 0]
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_ctrl_c_ends_exec_with_130_and_no_traceback(server: tuple[str, str], box: str) -> None:
    environment = os.environ | {"TORPOR_API": server[0], "TORPOR_API_KEY": server[1]}
    argv = [sys.executable, "-m", "torpor.cli", "exec", "-n", box, "echo begun; hang"]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(2)
        assert process.stderr.read() == b""
    assert process.returncode == 130


def test_cp_moves_files_and_folders_both_ways(torpor: Torpor, box: str, tmp_path: Path) -> None:
    source = tmp_path / "service"
    (source / "sub").mkdir(parents=True)
    (source / "a").write_text("a")
    (source / "sub" / "b").write_text("b")
    assert torpor("cp", str(source), f"{box}:/work")[0] == 0
    assert torpor("exec", box, "cat /work/service/a; cat /work/service/sub/b")[1] == "ab"
    assert torpor("cp", str(source / "a"), f"{box}:/work/new")[0] == 0
    assert torpor("cp", str(source / "a"), f"{box}:/fresh/")[0] == 0
    assert torpor("exec", box, "cat /work/new; cat /fresh/a")[1] == "aa"
    assert torpor("cp", f"{box}:/work/service", str(tmp_path / "back"))[0] == 0
    assert (tmp_path / "back" / "sub" / "b").read_text() == "b"
    assert torpor("cp", f"{box}:/work/service/a", str(tmp_path))[0] == 0
    assert (tmp_path / "a").read_text() == "a"
    said = json.loads(torpor("cp", "--json", f"{box}:/work/service", str(tmp_path / "again"))[1])
    assert said == {"files": 2, "bytes": 2, "skipped": []}


def test_cp_reads_stdin_and_writes_stdout(server: tuple[str, str], box: str) -> None:
    data = bytes(range(256)) * 5000
    assert piped(server, "cp", "-", f"{box}:/work/raw", stdin=data).returncode == 0
    ran = piped(server, "cp", f"{box}:/work/raw", "-")
    assert (ran.returncode, ran.stdout == data, ran.stderr) == (0, True, b"")


@pytest.mark.parametrize(
    ("source", "target", "complaint"),
    [
        ("{box}:/nowhere", "{tmp}/x", "there is no file /nowhere"),
        ("{tmp}/nowhere", "{box}:/x", "nowhere here"),
        ("{box}:/work", "{tmp}/file", "file exists"),
        ("{tmp}/file", "sbx-0000000000000000:/x", "sbx-0000000000000000"),
        ("{tmp}/pipe-folder", "{box}:/work", "neither a file nor a folder"),
    ],
)
def test_a_copy_that_cannot_be_made_is_one_line(
    torpor: Torpor, box: str, tmp_path: Path, source: str, target: str, complaint: str
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "pipe-folder").mkdir()
    os.mkfifo(tmp_path / "pipe-folder" / "pipe")
    code, out, err = torpor("cp", source.format(box=box, tmp=tmp_path), target.format(box=box, tmp=tmp_path))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert complaint in err.lower()


def test_rm_deletes_what_it_finds_and_tells_what_it_does_not(torpor: Torpor, box: str) -> None:
    code, out, err = torpor("rm", "nobody", box, "--json")
    assert (code, json.loads(out)) == (1, {"deleted": [box]})
    assert json.loads(err)["code"] == "not_found"
    assert torpor("rm", box)[0] == 1
    assert torpor("rm", "--force", box)[0] == 0


def test_what_the_server_refuses_is_one_line(torpor: Torpor) -> None:
    for argv, word in (
        (["create", "nope"], "no template 'nope'"),
        (["create", "--name", "bad name"], "letters, digits"),
        (["create", "--ttl", "0"], "ttl_seconds"),
        (["create", "-m", "x"], "--metadata takes NAME=VALUE"),
        (["template", "rm", "nope"], "no template"),
    ):
        code, out, err = torpor(*argv)
        assert (code, out, err.count("\n"), err.startswith("error: ")) == (1, "", 1, True)
        assert word in err


def test_templates_are_listed_for_people_and_programs(torpor: Torpor) -> None:
    assert "4.5 s" in torpor("template", "list")[1]
    assert {one["name"] for one in json.loads(torpor("template", "list", "--json")[1])} == {"base", "agent"}


def test_a_sandbox_sleeps_and_wakes_and_the_list_says_so(torpor: Torpor, box: str) -> None:
    for verb, state in (("hibernate", "hibernated"), ("wake", "running"), ("pause", "paused"), ("resume", "running")):
        assert torpor(verb, box) == (0, "", "")
        assert [one["id"] for one in json.loads(torpor("list", "--json", "--state", state)[1])] == [box]
        assert state in torpor("list", "-m", "run=42")[1]
    torpor("hibernate", box)
    assert torpor("exec", box, "-n", "echo awake")[:2] == (0, "awake\n")


def test_a_run_goes_back_to_a_snapshot_and_branches_from_it(torpor: Torpor, box: str) -> None:
    code, out, err = torpor("snapshot", box, "--name", "ready")
    taken = out.strip()
    assert (code, err, taken.startswith("snp-")) == (0, "", True)
    torpor("exec", "-n", box, "true")
    assert torpor("rollback", box, "ready") == (0, "", "")
    assert json.loads(torpor("show", box, "--json")[1])["last_snapshot_id"] == taken
    (copy,) = torpor("restore", taken, "--ttl", "5m", "--name", "copy")[1].split()
    children = torpor("fork", box, "-n", "2", "-m", "try=1")[1].split()
    assert json.loads(torpor("show", "copy", "--json")[1])["from_snapshot"] == taken
    (root,) = json.loads(torpor("tree", box, "--json")[1])
    below = {one["id"]: {child["id"] for child in one["children"]} for one in root["children"]}
    assert (root["id"], below[taken]) == (box, {copy})
    assert set(children) in below.values()
    assert f"└── {copy}  copy  running" in torpor("tree", "ready")[1]
    assert torpor("snapshot", "verify", taken)[1].startswith(f"{taken}  ok")
    assert torpor("rm", copy, *children)[0] == 0
    assert torpor("snapshot", "rm", taken)[0] == 0
    assert taken not in {one["id"] for one in json.loads(torpor("snapshots", "--json")[1])}


def test_version_is_printed(torpor: Torpor) -> None:
    assert torpor("version")[1].startswith("torpor ")
    assert json.loads(torpor("version", "--json")[1])["api"] == "v1"


def test_ids_and_templates_are_completed(torpor: Torpor, box: str) -> None:
    from torpor.cli.link import ids_beginning_with, snapshots_beginning_with, templates_beginning_with

    taken = torpor("snapshot", box)[1].strip()
    assert snapshots_beginning_with(taken[:6]) == [(taken, f"checkpoint of {box}")]
    torpor("snapshot", "rm", taken)
    assert [found for found, _ in ids_beginning_with(box[:6])] == [box]
    assert templates_beginning_with("ag") == ["agent"]


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("torpor snapshot ", {"take", "show", "verify", "rm", "{box}"}),
        ("torpor snapshot sbx", {"{box}"}),
        ("torpor snapshot {box} --na", {"--name"}),
        ("torpor hibernate sbx", {"{box}"}),
        ("torpor fork s", {"{box}"}),
    ],
)
def test_a_shell_completes_what_is_typed(server: tuple[str, str], box: str, typed: str, wanted: set[str]) -> None:
    line = typed.format(box=box)
    asked = {"_TORPOR_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    offered = set(piped(server, more=asked).stdout.decode().split())
    assert {word.format(box=box) for word in wanted} <= offered
