"""How the command line reads what is typed and words what it prints."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from torpor.cli import output, record, wording
from torpor.cli.app import run
from torpor.cli.cp import _place, _sides
from torpor.cli.exec import command_apart
from torpor.cli.options import named_values, seconds
from torpor.cli.serve import Listening, bound, listening_on
from torpor.errors import Forbidden, InvalidRequest, NotFound

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server is configured, and output is for people again after each test."""
    monkeypatch.setenv("TORPOR_HOME", str(tmp_path))
    monkeypatch.delenv("TORPOR_API", raising=False)
    monkeypatch.setattr(output._Mode, "as_json", False)


@pytest.mark.parametrize(("text", "length"), [("90", 90), ("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86400)])
def test_lengths_of_time_have_units(text: str, length: int) -> None:
    assert seconds(text, "--ttl") == length


@pytest.mark.parametrize("text", ["", "h", "-1", "1.5h", "1w", "1 h", "9999999999"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--ttl takes a length of time"):
        seconds(text, "--ttl")


def test_named_values_keep_later_equal_signs() -> None:
    assert named_values(["A=b=c", "D="], "--env") == {"A": "b=c", "D": ""}
    for wrong in ("A", "=b", ""):
        with pytest.raises(InvalidRequest, match="--env takes NAME=VALUE"):
            named_values([wrong], "--env")


@pytest.mark.parametrize(
    ("text", "path", "sandbox"),
    [
        ("box:/work/a", "/work/a", "box"),
        ("box:/with:colon", "/with:colon", "box"),
        ("./box:/a", "./box:/a", None),
        ("/tmp/a:/b", "/tmp/a:/b", None),
        ("plain", "plain", None),
        ("-", "-", None),
    ],
)
def test_the_sides_of_a_copy_are_told_apart(text: str, path: str, sandbox: str | None) -> None:
    assert _place(text) == (path, sandbox)


@pytest.mark.parametrize(("source", "target"), [("a", "b"), ("x:/a", "y:/b"), ("-", "-"), ("box:rel", "b")])
def test_a_copy_needs_one_side_in_a_sandbox_and_an_absolute_path_there(source: str, target: str) -> None:
    with pytest.raises(InvalidRequest, match=r"side of the copy is in a sandbox|both sides|absolute path"):
        _sides(source, target)


def test_an_empty_side_of_a_copy_is_not_the_folder_one_is_in() -> None:
    for sides in (("", "box:/a"), ("box:/a", "")):
        with pytest.raises(InvalidRequest, match="empty"):
            _sides(*sides)


def test_a_terminal_obeys_nothing_that_an_error_repeats(capsys: Captured) -> None:
    output.complain("there is no \x1b[2J here", hint="look \x07 again")
    assert capsys.readouterr().err == "error: there is no \ufffd[2J here. look \ufffd again\n"


def test_a_text_is_shown_with_its_lines_and_without_what_a_terminal_would_obey() -> None:
    assert wording.shown("a\tb\n\x1b]0;mine\x07\u202e é") == "a\tb\n\ufffd]0;mine\ufffd\ufffd é"


def test_an_error_is_one_line_with_its_hint(capsys: Captured) -> None:
    assert output.fail(NotFound("there is\nno such thing.", hint="make one")) == 1
    assert capsys.readouterr() == ("", "error: there is no such thing. make one\n")


def test_an_error_for_programs_is_the_apis_body(capsys: Captured) -> None:
    output.use_json(True)
    output.fail(NotFound("there is none", hint="make one", request_id="r-1"))
    said = json.loads(capsys.readouterr().err)
    assert (said["error"], said["code"], said["hint"], said["request_id"]) == (
        "there is none",
        "not_found",
        "make one",
        "r-1",
    )


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["exec"], "Missing argument"),
        (["list", "--nonsense"], "No such option"),
        (["list", "--limit", "x"], "--limit"),
        (["list", "--limit", "0"], "--limit"),
        (["serve", "--port", "70000"], "--port"),
    ],
)
def test_a_wrong_use_is_one_line_and_code_2(argv: list[str], complaint: str, capsys: Captured) -> None:
    assert run(argv) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    assert complaint in err
    assert "--help`" in err


@pytest.mark.parametrize(
    "argv",
    [
        ["list"],
        ["create"],
        ["show", "x"],
        ["exec", "x", "true"],
        ["template", "list"],
        ["hibernate", "x", "y"],
        ["snapshot", "x"],
        ["snapshots"],
        ["tree"],
    ],
)
def test_without_a_server_every_command_says_how_to_start_one(argv: list[str], capsys: Captured) -> None:
    assert run(argv) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: no Torpor server runs here")
    assert err.endswith("start it with `torpor up`\n")


PANELS = (
    ["create", "list", "show", "exec", "shell", "ps", "attach", "kill", "cp", "rm"],
    ["hibernate", "wake", "pause", "resume", "ttl", "idle"],
    ["snapshots", "rollback", "restore", "fork", "tree", "snapshot"],
    ["top", "usage", "logs", "audit", "token"],
    ["up", "down", "serve", "doctor", "version", "template"],
)
GROUPS = {
    "template": ("build", "list", "rm"),
    "snapshot": ("take", "show", "verify", "rm"),
    "token": ("create", "list", "revoke"),
}


def test_every_command_teaches_with_an_example(capsys: Captured) -> None:
    assert run(["--help"]) == 0
    whole = capsys.readouterr().out
    names = [name for panel in PANELS for name in panel]
    assert [name for name in names if name not in whole] == []
    single = [[name] for name in names if name not in GROUPS]
    for words in [*single, *([group, name] for group, names in GROUPS.items() for name in names)]:
        assert run([*words, "--help"]) == 0
        assert "Example" in capsys.readouterr().out


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_addresses_that_others_reach_are_refused_with_the_reason(host: str) -> None:
    with pytest.raises(Forbidden, match="not encrypted") as caught:
        listening_on(host, 0, insecure_http=False)
    for way_out in ("--tls-cert", "--insecure-http", "127.0.0.1"):
        assert way_out in str(caught.value.hint)


def test_addresses_that_others_reach_are_taken_on_demand_or_encrypted() -> None:
    open_to_all = listening_on("0.0.0.0", 7070, insecure_http=True)
    assert (open_to_all.address, open_to_all.is_private) == (("0.0.0.0", 7070), False)
    encrypted = listening_on("0.0.0.0", 7070, (Path("/c"), Path("/k")), insecure_http=False)
    assert encrypted.is_private
    assert listening_on("localhost", 7070, insecure_http=False).address[0] in ("127.0.0.1", "::1")


@pytest.mark.parametrize(
    "listening",
    [
        Listening("127.0.0.1", socket.AF_INET, ("127.0.0.1", 1)),
        Listening("0.0.0.0", socket.AF_INET, ("0.0.0.0", 2)),
        Listening("::", socket.AF_INET6, ("::", 3), Path("/c"), Path("/k")),
    ],
)
def test_how_a_server_listens_can_be_said_again(listening: Listening) -> None:
    words = dict(zip(*[iter([word for word in listening.arguments() if word != "--insecure-http"])] * 2, strict=True))
    tls = (Path(words["--tls-cert"]), Path(words["--tls-key"])) if "--tls-cert" in words else None
    is_insecure = "--insecure-http" in listening.arguments()
    assert listening_on(words["--host"], int(words["--port"]), tls, insecure_http=is_insecure) == listening


def test_a_name_without_an_address_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not an address"):
        listening_on("no such host", 1, insecure_http=True)


def test_a_port_that_is_taken_is_one_clear_sentence() -> None:
    with bound(listening_on("127.0.0.1", 0, insecure_http=False)) as first:
        first.listen()
        taken = listening_on("127.0.0.1", first.getsockname()[1], insecure_http=False)
        with pytest.raises(InvalidRequest, match=r"port \d+ on 127\.0\.0\.1 cannot be used: address already in use"):
            bound(taken)


def test_a_record_names_the_process_and_not_one_that_got_its_number(tmp_path: Path) -> None:
    mine = record.own("http://127.0.0.1:1", 60.0)
    mine.write(tmp_path)
    assert record.read(tmp_path) == mine
    record.Record(mine.url, mine.pid, mine.began + 1, mine.stop_s).write(tmp_path)
    assert record.read(tmp_path) is None


def test_a_record_that_cannot_be_read_is_no_record(tmp_path: Path) -> None:
    assert record.read(tmp_path / "nowhere") is None
    (tmp_path / "server.json").write_text("{")
    assert record.read(tmp_path) is None


def test_a_process_that_has_ended_has_no_beginning() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert record.began(child) is None  # a zombie
    os.waitpid(child, 0)
    assert record.began(child) is None


@pytest.mark.parametrize(
    ("length", "words"),
    [(0, "0 s"), (59, "59 s"), (90, "1.5 min"), (3600, "1 h"), (5400, "1.5 h"), (40 * 86400, "40 d")],
)
def test_spans_are_worded_in_their_largest_unit(length: float, words: str) -> None:
    assert wording.span(length) == words


@pytest.mark.parametrize(("count", "words"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**30, "5.0 GiB")])
def test_sizes_are_worded_in_their_largest_unit(count: int, words: str) -> None:
    assert wording.size(count) == words


@pytest.mark.parametrize(
    ("words", "apart"),
    [
        ("ID sort -n f", "ID -- sort -n f"),
        ("ID -- sort -n f", "ID -- sort -n f"),
        ("--timeout 5 ID -e A=1 git --version", "--timeout 5 ID -e A=1 -- git --version"),
        ("-n ID --cwd=/work ls -l", "-n ID --cwd=/work -- ls -l"),
        ("ID", "ID"),
        ("--help", "--help"),
    ],
)
def test_options_of_the_command_are_not_taken_for_ours(words: str, apart: str) -> None:
    assert command_apart(words.split(), {"--timeout", "-e", "--cwd"}) == apart.split()


def test_no_line_of_a_table_ends_in_blanks_where_no_person_looks(capsys: Captured) -> None:
    output.table(("id", "finding"), [("a", "short"), ("b", "rather a long finding")], empty="none")
    lines = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in lines] == lines


def test_a_table_is_never_folded_where_no_person_looks(capsys: Captured) -> None:
    output.table(("id", "metadata"), [("sbx-1", "long " * 100)], empty="none")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["ID", "sbx-1"]
