"""Processes: started, found again, listened to from where one was, fed and ended."""

from __future__ import annotations

import json
import signal

import httpx2
import pytest

from scripted_server import PROCESS, VIEW, Reply, Script, answer, ended, event, refusal, streamed, wrote
from torpor import (
    AsyncSandbox,
    CommandFailed,
    Conflict,
    ExecTimeout,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Process,
    Sandbox,
)
from torpor.sdk.results import SandboxInfo
from torpor.wire.errors import to_body
from torpor.wire.processes import ProcessView
from torpor.wire.public import SandboxView

INFO = SandboxInfo.of(SandboxView.model_validate(VIEW))
AT = f"/v1/sandboxes/{INFO.id}/processes/{PROCESS['id']}"
CUT = httpx2.ReadError("cut")
DONE = PROCESS | {"state": "ended", "exit_code": 3, "stdout_bytes": 4}


def process(script: Script) -> Process:
    return Process(script.client(), ProcessView.model_validate(PROCESS))


def test_a_start_whose_answer_was_lost_is_sent_again_under_the_same_key() -> None:
    script = Script([CUT, answer(PROCESS, 201)])
    with script.client() as client:
        started = Sandbox(client, INFO).start(["make", "all"], timeout_seconds=9, cwd="/w", env={"A": "b"}, user="me")
    assert (started.id, started.info.state, started.exit_code) == (PROCESS["id"], "running", None)
    first, second = script.received
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    body = json.loads(first.body)
    assert (first.path, body["cmd"], body["timeout_seconds"], body["open_stdin"]) == (
        f"/v1/sandboxes/{INFO.id}/processes",
        ["make", "all"],
        9,
        False,
    )


@pytest.mark.parametrize(
    ("stdin", "sent"), [(True, (True, None)), (False, (False, None)), ("é", (False, "w6k=")), (b"", (False, ""))]
)
def test_a_started_command_gets_input_now_or_later(stdin: object, sent: object) -> None:
    script = Script([answer(PROCESS, 201)])
    with script.client() as client:
        Sandbox(client, INFO).start("cat", stdin=stdin)  # type: ignore[arg-type]
    body = json.loads(script.received[0].body)
    assert (body["open_stdin"], body.get("stdin_base64")) == sent


def test_processes_are_listed_and_found_by_id() -> None:
    script = Script([answer({"items": [PROCESS, DONE]}), answer(DONE), refusal(NotFound("no such process"))])
    with script.client() as client:
        box = Sandbox(client, INFO)
        assert [one.exit_code for one in box.processes()] == [None, 3]
        assert box.attach(str(PROCESS["id"])).info.state == "ended"
        with pytest.raises(NotFound):
            box.attach(str(PROCESS["id"]))


def test_a_wait_returns_all_that_is_kept_and_goes_on_over_broken_lines() -> None:
    script = Script(
        [answer(PROCESS), streamed(wrote("stdout", b"ab"), breaks=CUT), streamed(wrote("stdout", b"cd"), ended(3))]
    )
    mine = process(script)
    result = mine.wait()
    assert (result.stdout, result.exit_code, result.truncated, mine.exit_code) == ("abcd", 3, False, 3)
    assert [one.query.get("stdout_from") for one in script.received] == [None, "0", "2"]


def test_a_wait_begins_with_the_oldest_byte_that_is_kept_and_says_so() -> None:
    script = Script(
        [answer(PROCESS | {"stdout_start": 1000, "stdout_bytes": 1002}), streamed(wrote("stdout", b"zz"), ended())]
    )
    assert process(script).wait().truncated
    assert script.received[1].query["stdout_from"] == "1000"


def test_a_wait_goes_on_with_what_is_kept_where_its_command_ran_away_from_it() -> None:
    script = Script(
        [
            answer(PROCESS),
            refusal(InvalidRequest("stdout is kept from 7 on")),
            answer(PROCESS | {"stdout_start": 7, "stdout_bytes": 9}),
            streamed(wrote("stdout", b"hi"), ended()),
        ]
    )
    mine = process(script)
    assert (mine.wait().stdout, mine.truncated) == ("hi", True)
    assert [one.query.get("stdout_from") for one in script.received] == [None, "0", None, "7"]


def test_a_loop_tells_of_output_it_missed_and_an_offset_that_is_not_kept_is_refused() -> None:
    refused, kept = refusal(InvalidRequest("kept from 7 on")), answer(PROCESS | {"stderr_start": 7, "stderr_bytes": 8})
    mine = process(Script([answer(PROCESS), refused, kept, streamed(wrote("stderr", b"x"), ended())]))
    assert (list(mine), mine.truncated) == ([("stderr", b"x")], True)
    asked_for = process(Script([refused]))
    with pytest.raises(InvalidRequest, match="from 7 on"):
        list(asked_for.events(0, 0))
    assert not asked_for.truncated


def test_a_check_and_a_timeout_of_its_own_are_told_as_of_an_exec() -> None:
    with pytest.raises(CommandFailed):
        process(Script([answer(PROCESS), streamed(ended(1))])).wait(check=True)
    told = to_body(ExecTimeout("command timeout after 2 s")).model_dump()
    with pytest.raises(ExecTimeout) as caught:
        process(Script([answer(PROCESS), streamed(wrote("stdout", b"begun"), event("error", **told))])).wait()
    assert caught.value.stdout == "begun"


def test_a_wait_that_is_interrupted_ends_nothing() -> None:
    script = Script([answer(PROCESS), streamed(breaks=KeyboardInterrupt())])
    with pytest.raises(KeyboardInterrupt):
        process(script).wait()
    assert [one.method for one in script.received] == ["GET", "GET"]


def test_a_wait_ends_at_its_timeout_and_the_command_runs_on() -> None:
    script = Script([answer(PROCESS), streamed(b": beat\n\n", breaks=httpx2.ReadTimeout("silent")), *[CUT] * 99])
    with pytest.raises(TimeoutError, match="runs on"):
        process(script).wait(timeout=0)
    assert [one.method for one in script.received] == ["GET", "GET"]


def test_a_wait_without_patience_still_returns_what_has_ended() -> None:
    assert process(Script([answer(DONE), streamed(wrote("stdout", b"done"), ended(3))])).wait(timeout=0).exit_code == 3


def test_its_output_comes_piece_by_piece_to_the_end() -> None:
    script = Script(
        [answer(PROCESS | {"stderr_start": 7}), streamed(wrote("stdout", b"o"), wrote("stderr", b"e"), ended(2))]
    )
    mine = process(script)
    assert list(mine) == [("stdout", b"o"), ("stderr", b"e")]
    assert mine.exit_code == 2
    assert (script.received[1].query["stdout_from"], script.received[1].query["stderr_from"]) == ("0", "7")


def test_listening_begins_at_the_offsets_that_are_given() -> None:
    script = Script([streamed(ended())])
    assert list(process(script).events(5, 6)) == []
    assert script.received[0].query == {"stdout_from": "5", "stderr_from": "6", "encoding": "base64"}


def test_its_output_so_far_is_read_without_waiting_for_more() -> None:
    now = PROCESS | {"stdout_bytes": 5, "stderr_bytes": 3}
    script = Script([answer(now), streamed(wrote("stdout", b"ab"), wrote("stdout", b"c"), breaks=KeyboardInterrupt())])
    assert process(script).output(2) == b"abc"
    assert script.received[1].query == {"stdout_from": "2", "stderr_from": "3", "encoding": "base64"}
    script = Script([answer(now), answer(now), streamed(wrote("stderr", b"xyz"))])
    mine = process(script)
    assert mine.output(5) == b""
    assert mine.output(stream="stderr") == b"xyz"


def test_output_that_is_not_kept_any_more_is_refused_by_name() -> None:
    script = Script([answer(PROCESS | {"stdout_bytes": 5}), refusal(InvalidRequest("stdout is kept from 3 on"))])
    with pytest.raises(InvalidRequest, match="from 3 on"):
        process(script).output()


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        (signal.SIGTERM, "SIGTERM"),
        (15, "SIGTERM"),
        ("term", "SIGTERM"),
        ("SIGINT", "SIGINT"),
    ],
)
def test_a_signal_may_be_said_in_several_ways(said: signal.Signals | int | str, sent: str) -> None:
    script = Script([Reply(204)])
    process(script).kill(said)
    assert (script.received[0].path, json.loads(script.received[0].body)) == (f"{AT}/signal", {"signal": sent})


def test_kill_is_final_unless_said_otherwise_and_a_wrong_signal_is_refused() -> None:
    script = Script([Reply(204)])
    process(script).kill()
    assert json.loads(script.received[0].body) == {"signal": "SIGKILL"}
    for wrong in (999, "NONSENSE", ""):
        with pytest.raises(InvalidRequest, match="is not a signal"):
            process(Script([])).kill(wrong)


def test_input_is_written_exactly_once_and_closed() -> None:
    script = Script([answer({"bytes": 2}), answer({"bytes": 0}), CUT, refusal(Conflict("it has ended"))])
    mine = process(script)
    assert mine.write_stdin("é") == 2
    mine.close_stdin()
    written, closed = script.received
    assert (written.path, written.body, written.query) == (f"{AT}/stdin", "é".encode(), {})
    assert (closed.body, closed.query) == (b"", {"close": "true"})
    with pytest.raises(OutcomeUnknown):
        mine.write_stdin(b"x")
    with pytest.raises(Conflict):
        mine.write_stdin(b"x")
    with pytest.raises(InvalidRequest, match="16 MiB"):
        mine.write_stdin(b"x" * (16 * 1024 * 1024 + 1))


async def test_the_async_twin_starts_listens_and_waits() -> None:
    script = Script(
        [
            answer(PROCESS, 201),
            answer(PROCESS),
            streamed(wrote("stdout", b"o"), ended(2)),
            answer(DONE),
            streamed(ended(3)),
        ]
    )
    async with script.async_client() as client:
        started = await AsyncSandbox(client, INFO).start("make")
        assert [piece async for piece in started] == [("stdout", b"o")]
        assert started.exit_code == 2
        assert (await started.wait()).exit_code == 3
