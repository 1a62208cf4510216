"""How the command line runs commands on their own, sets what the server does by itself, and shows what was used."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from command_line import Torpor, asked, command_line
from scripted_server import PROCESS, SNAPSHOT, VIEW, Reply, Script, answer, ended, event, refusal, streamed, wrote
from torpor import ExecTimeout, InvalidRequest, NotFound
from torpor.cli import wording
from torpor.cli.options import moment
from torpor.wire.errors import to_body

BOX, JOB = str(VIEW["id"]), str(PROCESS["id"])
SHOWN = answer(VIEW)
LIFE = {"ttl_seconds": 60, "persistent": False, "expires_at": "2030-01-01T00:01:00Z", "idle_seconds": 900}
USED: dict[str, Any] = {
    "since": "2030-01-01T00:00:00Z",
    "until": "2030-01-01T01:00:00Z",
    "running_seconds": 360.0,
    "hibernated_seconds": 3240.0,
    "active_share": 0.1,
    "cpu_seconds": 90.0,
    "cost": 0.0062,
    "always_on_cost": 0.0621,
    "saved_share": 0.9,
}
OF_ONE = USED | {
    "sandbox_id": BOX,
    "name": "mine",
    "template": "base",
    "cpu": 1,
    "memory_mb": 512,
    "created_at": "2030-01-01T00:00:00Z",
}
REPORT = {"total": USED, "items": [OF_ONE], "prices": {"vcpu_second": 0.000015, "gib_second": 0.0000045}}
LIVE = {
    "sandbox_id": BOX,
    "template": "base",
    "status": "running",
    "cpu": 1,
    "memory_mb": 512,
    "created_at": VIEW["created_at"],
}


@pytest.fixture
def torpor(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Torpor:
    return command_line(monkeypatch, capfd)


def test_a_detached_command_prints_its_id_alone(torpor: Torpor) -> None:
    code, out, err, script = torpor(["exec", "-n", "-d", BOX, "make", "-j4"], SHOWN, answer(PROCESS, 201))
    assert (code, out, err) == (0, f"{JOB}\n", "")
    assert asked(script)[1] == f"POST sandboxes/{BOX}/processes"
    assert json.loads(script.received[1].body)["cmd"] == ["make", "-j4"]


def test_processes_are_listed_for_people_and_programs(torpor: Torpor) -> None:
    killed = PROCESS | {
        "state": "ended",
        "exit_code": 137,
        "signal": "SIGKILL",
        "stdout_bytes": 2048,
        "command": "a\x1b[2Jb",
    }
    late = PROCESS | {"state": "ended", "exit_code": 137, "timed_out": True}
    code, out, _, _ = torpor(["ps", BOX], SHOWN, answer({"items": [PROCESS, killed, late]}))
    header, running, second, third = out.splitlines()
    assert (code, header.split()[:3], running.split()[:3]) == (0, ["ID", "KIND", "STATE"], [JOB, "process", "running"])
    assert "SIGKILL" in second
    assert "2.0 KiB" in second
    assert "\x1b" not in second
    assert "timeout" in third
    _, out, _, _ = torpor(["ps", BOX, "--json"], SHOWN, answer({"items": [killed]}))
    assert json.loads(out)[0]["signal"] == "SIGKILL"


def test_without_processes_there_is_nothing_to_list(torpor: Torpor) -> None:
    assert torpor(["ps", BOX], SHOWN, answer({"items": []}))[:3] == (0, "", "")


def test_attach_passes_both_streams_through_and_ends_with_the_code(torpor: Torpor) -> None:
    stream = streamed(wrote("stdout", b"o"), wrote("stderr", b"e"), ended(7))
    code, out, err, script = torpor(
        ["attach", BOX, JOB, "--from", "5"], SHOWN, answer(PROCESS), answer(PROCESS), stream
    )
    assert (code, out, err) == (7, "o", "e")
    assert script.received[-1].query["stdout_from"] == "5"


def test_attach_to_what_was_killed_for_its_timeout_ends_with_124(torpor: Torpor) -> None:
    told = event("error", **to_body(ExecTimeout("command timeout after 2 s")).model_dump())
    code, _, err, _ = torpor(["attach", BOX, JOB], SHOWN, answer(PROCESS), answer(PROCESS), streamed(told))
    assert (code, err) == (124, "error: command timeout after 2 s.\n")


@pytest.mark.parametrize(("words", "sent"), [([], "SIGKILL"), (["-s", "term"], "SIGTERM")])
def test_kill_sends_a_signal(torpor: Torpor, words: list[str], sent: str) -> None:
    code, _, _, script = torpor(["kill", BOX, JOB, *words], SHOWN, answer(PROCESS), Reply(204))
    assert (code, json.loads(script.received[-1].body)) == (0, {"signal": sent})


def test_one_that_cannot_be_killed_does_not_keep_the_next_from_it(torpor: Torpor) -> None:
    gone = refusal(NotFound("there is no process job-x"))
    argv = ["kill", BOX, JOB, JOB, "--json"]
    code, out, err, _ = torpor(argv, SHOWN, gone, answer(PROCESS), Reply(204))
    assert (code, json.loads(out), json.loads(err)["code"]) == (1, {"signalled": [JOB]}, "not_found")


@pytest.mark.parametrize("words", [["list", "--limit"], ["snapshots", "--limit"]])
def test_a_limit_beyond_all_sense_is_a_wrong_use(torpor: Torpor, words: list[str]) -> None:
    code, _, err, _ = torpor([*words, "99999999999999999999"])
    assert (code, err.count("\n")) == (2, 1)


@pytest.mark.parametrize("words", [["list", "--state", "\udcff"], ["logs", "--events", "--type", "\udcff"]])
def test_what_is_no_text_is_one_line(torpor: Torpor, words: list[str]) -> None:
    code, _, err, _ = torpor(words)
    assert (code, err.count("\n")) == (1, 1)
    assert "cannot be sent" in err


def test_a_process_that_is_not_there_is_one_line(torpor: Torpor) -> None:
    code, _, err, _ = torpor(["kill", BOX, JOB], SHOWN, refusal(NotFound("there is no process job-x")))
    assert (code, err) == (1, "error: there is no process job-x.\n")


def test_a_create_says_what_the_server_is_to_do_by_itself(torpor: Torpor) -> None:
    words = ["--idle", "15m", "--on-idle", "delete", "--on-crash", "restore"]
    words += ["--checkpoint-every", "5m", "--checkpoint-execs", "10", "--checkpoint-keep", "4"]
    code, _, _, script = torpor(["create", *words], answer(VIEW, 201))
    wanted = {
        "idle_timeout_seconds": 900,
        "on_idle": "delete",
        "on_crash": "restore",
        "checkpoint_every_seconds": 300,
        "checkpoint_every_execs": 10,
        "checkpoint_keep": 4,
    }
    assert code == 0
    assert json.loads(script.received[0].body).items() >= wanted.items()
    _, out, _, _ = torpor(["show", BOX], answer(VIEW | wanted))
    assert "delete after 15 min" in out
    assert "every 5 min, every 10 commands; the newest 4 are kept" in out


def test_a_wrong_wish_is_one_line(torpor: Torpor) -> None:
    code, out, err, _ = torpor(["create", "--on-idle", "explode"])
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "on_idle" in err


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (["ttl", BOX, "2h"], {"ttl_seconds": 7200}),
        (["ttl", BOX, "persistent"], {"persistent": True}),
        (["idle", BOX, "15m"], {"idle_seconds": 900}),
        (["idle", BOX, "never"], {"idle_seconds": 0}),
    ],
)
def test_the_end_and_the_idle_time_are_changed(torpor: Torpor, words: list[str], body: dict[str, object]) -> None:
    code, out, _, script = torpor(words, SHOWN, answer(LIFE))
    assert (code, out, json.loads(script.received[1].body)) == (0, "", body)


def test_without_a_time_the_end_and_the_idle_time_are_told(torpor: Torpor) -> None:
    assert torpor(["ttl", BOX], SHOWN)[1] == "lives until it is deleted\n"
    assert torpor(["idle", BOX], SHOWN)[1] == "never\n"
    assert torpor(["idle", BOX], answer(VIEW | {"idle_timeout_seconds": 90}))[1] == "hibernate after 1.5 min\n"


def test_usage_is_a_table_with_its_sum(torpor: Torpor) -> None:
    code, out, _, script = torpor(["usage", "-m", "run=1", "--since", "2030-01-01T00:00:00+00:00"], answer(REPORT))
    lines = out.splitlines()
    assert (code, len(lines), lines[0].split()[0]) == (0, 3, "SANDBOX")
    assert lines[1].split() == [
        BOX,
        "mine",
        "base",
        "1",
        "h",
        "6",
        "min",
        "10",
        "%",
        "1.5",
        "min",
        "0.0062",
        "0.0621",
        "90",
        "%",
    ]
    assert lines[2].split()[0] == "total"
    assert script.received[0].query["metadata.run"] == "1"
    assert datetime.fromisoformat(script.received[0].query["since"]) == datetime(2030, 1, 1, tzinfo=UTC)


def test_usage_of_one_is_told_in_full_and_needs_no_living_sandbox(torpor: Torpor) -> None:
    code, out, _, script = torpor(["usage", BOX], answer(OF_ONE))
    assert (code, asked(script)) == (0, [f"GET sandboxes/{BOX}/usage"])
    assert "saved" in out
    assert "90 %" in out


def test_usage_for_programs_is_json_or_csv(torpor: Torpor) -> None:
    _, out, _, _ = torpor(["usage", "--json"], answer(REPORT))
    told = json.loads(out)
    assert (told["total"]["cost"], told["items"][0]["sandbox_id"], told["prices"]["currency"]) == (0.0062, BOX, "USD")
    table = Reply(pieces=(f"sandbox_id,cost\r\nsbx-other,1\r\n{BOX},2\r\n".encode(),))
    _, out, _, script = torpor(["usage", "--csv"], table)
    assert (out.splitlines(), script.received[0].query["format"]) == (
        ["sandbox_id,cost", "sbx-other,1", f"{BOX},2"],
        "csv",
    )
    assert torpor(["usage", BOX, "--csv"], table)[1].splitlines() == ["sandbox_id,cost", f"{BOX},2"]


def test_an_id_and_labels_exclude_each_other(torpor: Torpor) -> None:
    assert torpor(["usage", BOX, "-m", "a=b"])[0] == 1


def happened(number: int, kind: str, **data: object) -> dict[str, object]:
    return {"cursor": str(number), "at": "2030-01-01T00:00:00Z", "type": kind, "sandbox_id": BOX, "data": data}


def test_events_are_a_line_each(torpor: Torpor) -> None:
    page = {
        "items": [
            happened(1, "state", **{"from": "running", "to": "hibernating", "verb": "hibernate"}),
            happened(2, "exec", command="make \x1b[2J all", exit_code=0, signal=None),
        ]
    }
    code, out, _, script = torpor(["logs", BOX, "--events", "--type", "state", "--type", "exec"], answer(page))
    first, second = out.splitlines()
    assert (code, asked(script)) == (0, [f"GET sandboxes/{BOX}/events"])
    assert first.endswith("state        running -> hibernating verb=hibernate")
    assert "exit_code=0" in second
    assert "\x1b" not in second
    _, out, _, _ = torpor(["logs", "--events", "--json"], answer(page))
    assert [json.loads(line)["cursor"] for line in out.splitlines()] == ["1", "2"]


def test_the_console_is_printed_and_what_is_about_events_needs_them(torpor: Torpor) -> None:
    assert torpor(["logs", BOX], SHOWN, Reply(pieces=(b"booted\n",)))[:2] == (0, "booted\n")
    for words in (["logs"], ["logs", BOX, "--follow"]):
        code, out, err, _ = torpor(words)
        assert (code, out, err.count("\n")) == (1, "", 1)


def test_top_shows_once_where_no_person_looks(torpor: Torpor) -> None:
    first = answer({"at": "2030-01-01T00:00:00Z", "items": [LIVE | {"cpu_seconds": 10.0}]})
    now = LIVE | {"cpu_seconds": 11.0, "resident_bytes": 2**28, "disk_bytes": 2**20, "in_flight": 2, "name": "mine"}
    second = answer(
        {"at": "2030-01-01T00:00:02Z", "items": [now, LIVE | {"sandbox_id": "sbx-new", "status": "waking"}]}
    )
    code, out, _, _ = torpor(["top", "--every", "0.1"], first, second)
    _, line, new = out.splitlines()
    assert code == 0
    assert line.split()[:9] == ["mine", "running", "50", "%", "256.0", "MiB", "1.0", "MiB", "2"]
    assert new.split()[:2] == ["sbx-new", "waking"]
    _, out, _, _ = torpor(["top", "--every", "0.1", "--json"], first, second)
    assert [one["cpu_share"] for one in json.loads(out)["items"]] == [0.5, None]


def test_top_is_drawn_again_and_again_until_ctrl_c_which_is_no_failure() -> None:
    looks = [answer({"at": f"2030-01-01T00:00:{second:02}Z", "items": [LIVE]}) for second in range(60)]
    seen, terminal = pty.openpty()
    with Script(list(looks)).listening() as url:
        environment = os.environ | {
            "TORPOR_API": url,
            "TORPOR_API_KEY": "secret-key",
            "NO_COLOR": "1",
            "COLUMNS": "120",
        }
        argv = [sys.executable, "-m", "torpor.cli", "top", "--every", "0.5"]
        with subprocess.Popen(argv, env=environment, stdout=terminal, stderr=subprocess.PIPE) as process:
            os.close(terminal)
            drawn = b""
            while drawn.count(b"running") < 2:
                drawn += os.read(seen, 4096)
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            assert process.stderr.read() == b""
    os.close(seen)
    assert process.returncode == 0


def test_the_tree_of_snapshots_is_drawn(torpor: Torpor) -> None:
    child = SNAPSHOT | {"id": "snp-bbbbbbbbbbbbbbbb", "parent_id": SNAPSHOT["id"], "created_at": "2030-01-01T00:01:00Z"}
    page = answer({"items": [child, SNAPSHOT], "next_cursor": None})
    _, out, _, _ = torpor(["snapshots", BOX, "--tree"], SHOWN, page)
    first, second = out.splitlines()
    assert first.startswith(str(SNAPSHOT["id"]))
    assert second.startswith("└── snp-bbbbbbbbbbbbbbbb")


def test_a_moment_is_a_date_or_so_long_ago() -> None:
    assert moment("2030-01-31T12:00:00+00:00", "--since") == datetime(2030, 1, 31, 12, tzinfo=UTC)
    ago = moment("2h", "--since")
    assert ago is not None
    assert abs(datetime.now(UTC) - timedelta(hours=2) - ago) < timedelta(minutes=1)
    assert moment(None, "--since") is None
    for wrong in ("yesterday", "999999999d", "2030-13-01"):
        with pytest.raises(InvalidRequest, match="--since takes a moment"):
            moment(wrong, "--since")


def test_amounts_are_worded_with_digits_that_tell_something() -> None:
    assert [wording.money(12.345), wording.money(0.00123), wording.share(0.876)] == ["12.35", "0.0012", "88 %"]
    assert wording.plain("a\nb\x1b[2J") == "a b\N{REPLACEMENT CHARACTER}[2J"
