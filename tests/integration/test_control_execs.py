"""Running commands through the API: collected, kept alive, and streamed."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from control_rig import NOBODY, Rig, control_rig, events_of
from torpor.control.api.stream import TextWriter
from torpor.errors import Busy, NoCapacity, OutcomeUnknown
from torpor.model.ids import SandboxId
from torpor.model.lifecycle import State
from torpor.wire.public import MAX_COLLECTED_BYTES, MAX_STDIN_BYTES


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


@pytest.fixture
async def made(rig: Rig) -> str:
    return await rig.create(env={"GREETING": "hello"})


async def run(rig: Rig, made: str, **body: Any) -> httpx2.Response:
    return await rig.http.post(f"/v1/sandboxes/{made}/exec", json=body)


async def stream(rig: Rig, made: str, **body: Any) -> httpx2.Response:
    return await rig.http.post(f"/v1/sandboxes/{made}/exec/stream", json=body)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"cmd": "echo a b"}, {"stdout": "a b\n", "stderr": "", "exit_code": 0}),
        ({"cmd": ["echo", "a  b"]}, {"stdout": "a  b\n", "exit_code": 0}),
        ({"cmd": "exit 44"}, {"exit_code": 44, "signal": None}),
        ({"cmd": "echo oh >&2; exit 1"}, {"stdout": "", "stderr": "oh\n", "exit_code": 1}),
        ({"cmd": "kill -9 $$"}, {"exit_code": 137, "signal": "SIGKILL"}),
        ({"cmd": "nothing-like-it"}, {"exit_code": 127}),
        ({"cmd": "echo $GREETING"}, {"stdout": "hello\n"}),
        ({"cmd": "echo $A", "env": {"A": 'x y"z\nq'}}, {"stdout": 'x y"z\nq\n'}),
        ({"cmd": ["pwd"], "cwd": "/tmp"}, {"stdout": "/tmp\n"}),
        ({"cmd": ["id"], "user": "nobody"}, {"stdout": "nobody\n"}),
        ({"cmd": ["cat"], "stdin": "text, täxt"}, {"stdout": "text, täxt"}),
        ({"cmd": ["cat"], "stdin_base64": base64.b64encode(b"\x00\x01").decode()}, {"stdout": "\x00\x01"}),
        ({"cmd": ["cat"]}, {"stdout": ""}),
        ({"cmd": ["raw", "c3", "a9ff"]}, {"stdout": "é\ufffd"}),
        ({"cmd": ["true"], "timeout_seconds": 5, "unknown": {}}, {"exit_code": 0, "truncated": False}),
    ],
)
async def test_a_command_answers_with_its_result(
    rig: Rig, made: str, body: dict[str, Any], expected: dict[str, Any]
) -> None:
    answer = await run(rig, made, **body)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert expected.items() <= answer.json().items()


BAD = [
    ({}, "cmd is required"),
    ({"cmd": ""}, "cmd is empty"),
    ({"cmd": "  \n"}, "cmd is empty"),
    ({"cmd": []}, "cmd is empty"),
    ({"cmd": [""]}, "cmd is empty"),
    ({"cmd": None}, "cmd has to be"),
    ({"cmd": 3}, "cmd has to be"),
    ({"cmd": ["a", 3]}, "cmd"),
    ({"cmd": "a\0b"}, "NUL"),
    ({"cmd": ["a", "b\0"]}, "NUL"),
    ({"cmd": "a\ud800"}, "cmd: half a surrogate pair"),
    ({"cmd": ["a", "\udcff"]}, "cmd: half a surrogate pair"),
    ({"cmd": "a", "stdin": "\ud800"}, "stdin: half a surrogate pair"),
    ({"cmd": "a", "env": {"A": "\ud800"}}, "env.A"),
    ({"cmd": "a", "timeout_seconds": -1}, "timeout_seconds"),
    ({"cmd": "a", "timeout_seconds": 0}, "timeout_seconds"),
    ({"cmd": "a", "timeout_seconds": "5"}, "timeout_seconds"),
    ({"cmd": "a", "cwd": "tmp"}, "cwd has to be absolute"),
    ({"cmd": "a", "cwd": ""}, "cwd is empty"),
    ({"cmd": "a", "cwd": "/a\0"}, "cwd has a NUL"),
    ({"cmd": "a", "user": ""}, "user"),
    ({"cmd": "a", "env": {"": "x"}}, "env"),
    ({"cmd": "a", "env": {"A": 1}}, "env.A"),
    ({"cmd": "a", "env": "A=1"}, "env"),
    ({"cmd": "a", "stdin": 5}, "stdin"),
    ({"cmd": "a", "stdin": "x", "stdin_base64": "eA=="}, "stdin and stdin_base64"),
    ({"cmd": "a", "stdin_base64": "%"}, "stdin_base64 is not base64"),
    ({"cmd": "a", "encoding": "hex"}, "encoding"),
]


@pytest.mark.parametrize("rest", ["exec", "exec/stream"])
@pytest.mark.parametrize(("body", "said"), BAD)
async def test_a_bad_command_is_refused_before_it_reaches_the_host(
    rig: Rig, made: str, rest: str, body: dict[str, Any], said: str
) -> None:
    sent = json.dumps(body)  # in ASCII, since some of it can be sent in no other way
    answer = await rig.http.post(
        f"/v1/sandboxes/{made}/{rest}", content=sent, headers={"content-type": "application/json"}
    )
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (400, "invalid_request")
    assert said in problem["error"]
    assert rig.host.calls["exec"] == 0


async def test_stdin_up_to_its_limit_fits_and_more_does_not(rig: Rig, made: str) -> None:
    full = await run(rig, made, cmd=["cat"], stdin_base64=base64.b64encode(b"a" * MAX_STDIN_BYTES).decode())
    assert len(full.json()["stdout"]) == MAX_STDIN_BYTES
    over = await run(rig, made, cmd=["cat"], stdin_base64=base64.b64encode(b"a" * (MAX_STDIN_BYTES + 1)).decode())
    assert over.status_code == 400
    assert "stdin is" in over.json()["error"]


@pytest.mark.parametrize("rest", ["exec", "exec/stream"])
async def test_a_command_for_nobody_is_not_found(rig: Rig, rest: str) -> None:
    answer = await rig.http.post(f"/v1/sandboxes/{NOBODY}/{rest}", json={"cmd": "true"})
    assert answer.status_code == 404


@pytest.mark.parametrize("rest", ["exec", "exec/stream"])
@pytest.mark.parametrize(
    ("state", "status", "code"),
    [
        (State.PAUSED, 409, "conflict"),
        (State.FAILED, 410, "sandbox_lost"),
        (State.DELETED, 404, "not_found"),
    ],
)
async def test_a_command_needs_a_sandbox_that_runs_or_can_be_woken(
    rig: Rig, made: str, rest: str, state: State, status: int, code: str
) -> None:
    await rig.store.move(SandboxId(made), {State.RUNNING}, state, rig.clock.now())
    answer = await rig.http.post(f"/v1/sandboxes/{made}/{rest}", json={"cmd": "true"})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    if status == 409:
        assert answer.json()["details"] == {"seen": state.value, "needed": ["running"]}
        assert answer.json()["hint"] == "resume it first"


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (State.CREATING, 200),
        (State.SNAPSHOTTING, 200),
        (State.HIBERNATING, 200),
        (State.WAKING, 200),
        (State.RESTORING, 200),
        (State.DELETING, 404),
    ],
)
async def test_a_command_for_a_sandbox_whose_last_answer_was_lost_learns_the_truth_first(
    rig: Rig, made: str, state: State, status: int
) -> None:
    await rig.store.move(SandboxId(made), {State.RUNNING}, state, rig.clock.now())
    assert (await run(rig, made, cmd="true")).status_code == status


@pytest.mark.parametrize("vanished", [False, True])
async def test_a_machine_found_dead_fails_its_sandbox_at_once(rig: Rig, made: str, vanished: bool) -> None:
    rig.host.vanish(made) if vanished else rig.host.die(made, "killed by signal 9")
    answer = await run(rig, made, cmd="true")
    assert (answer.status_code, answer.json()["code"]) == (410, "sandbox_lost")
    assert answer.json()["details"] == {"last_snapshot": None}
    shown = (await rig.http.get(f"/v1/sandboxes/{made}")).json()
    assert shown["status"] == "failed"
    assert shown["reason"]


async def test_a_machine_that_dies_under_a_command_fails_its_sandbox(rig: Rig, made: str) -> None:
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(run(rig, made, cmd=["hang"]))
        await rig.host.machines[made].started.wait()
        rig.host.die(made, "killed by signal 9")
    assert asked.result().status_code == 410
    assert "killed by signal 9" in asked.result().json()["error"]
    assert await rig.status(made) == "failed"


async def test_a_lost_answer_is_an_unknown_outcome_and_the_sandbox_runs_on(rig: Rig, made: str) -> None:
    rig.host.lose_answer("exec")
    answer = await run(rig, made, cmd="true")
    assert (answer.status_code, answer.json()["code"]) == (500, "outcome_unknown")
    assert (await run(rig, made, cmd="true")).json()["exit_code"] == 0


@pytest.mark.parametrize(("given", "said"), [(2, "2"), (0.5, "0.5"), (3.0, "3")])
async def test_a_timeout_is_a_504_with_what_was_written(rig: Rig, made: str, given: float, said: str) -> None:
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(run(rig, made, cmd="echo so far; echo oh >&2; sleep 60", timeout_seconds=given))
        await rig.host.machines[made].started.wait()
        await rig.clock.jump(given)
    answer = asked.result()
    assert (answer.status_code, answer.json()["code"]) == (504, "exec_timeout")
    assert answer.json()["error"] == f"command timeout after {said} s"
    assert answer.json()["details"] == {"stdout": "so far\n", "stderr": "oh\n"}


async def test_a_long_command_is_kept_alive_with_spaces(rig: Rig, made: str) -> None:
    url = f"/v1/sandboxes/{made}/exec"
    opening = rig.http.stream("POST", url, json={"cmd": "sleep 21; echo done; exit 3"})
    async with asyncio.TaskGroup() as group:
        entering = group.create_task(opening.__aenter__())
        await rig.host.machines[made].started.wait()
        await rig.clock.jump(9.9)
        assert not entering.done()
        await rig.clock.jump(0.1)
    answer = entering.result()
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    chunks = answer.aiter_raw()
    seen = [await anext(chunks)]
    for _ in range(2):
        await rig.clock.jump(5)
        seen.append(await anext(chunks))
    assert seen == [b" "] * 3
    await rig.clock.jump(1)
    rest = b"".join([chunk async for chunk in chunks])
    assert {"stdout": "done\n", "exit_code": 3}.items() <= json.loads(b"".join(seen) + rest).items()
    await opening.__aexit__(None, None, None)


async def test_a_timeout_after_the_answer_has_begun_is_exit_code_124(rig: Rig, made: str) -> None:
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(run(rig, made, cmd="echo part; sleep 60", timeout_seconds=30))
        await rig.host.machines[made].started.wait()
        await rig.clock.jump(30)
    answer = asked.result()
    assert answer.status_code == 200
    assert answer.text.startswith(" ")
    assert answer.json()["exit_code"] == 124
    assert answer.json()["stdout"] == "part\n"
    assert answer.json()["stderr"] == "command timeout after 30 s\n"


async def test_an_answer_that_has_begun_and_fails_is_broken_off_and_never_a_result(rig: Rig, made: str) -> None:
    task = asyncio.create_task(run(rig, made, cmd=["hang"]))
    await rig.host.machines[made].started.wait()
    await rig.clock.jump(12)
    rig.host.die(made)
    with pytest.raises(httpx2.RemoteProtocolError):
        await task


async def test_output_beyond_the_limit_is_dropped_and_said(rig: Rig, made: str) -> None:
    exact = (await run(rig, made, cmd=["blob", str(MAX_COLLECTED_BYTES)])).json()
    assert (len(exact["stdout"]), exact["truncated"]) == (MAX_COLLECTED_BYTES, False)
    over = (await run(rig, made, cmd=["blob", str(MAX_COLLECTED_BYTES + 1)])).json()
    assert (len(over["stdout"]), over["truncated"], over["exit_code"]) == (MAX_COLLECTED_BYTES, True, 0)


@pytest.mark.parametrize("rest", ["exec", "exec/stream"])
async def test_hanging_up_kills_the_command(rig: Rig, made: str, rest: str) -> None:
    task = asyncio.create_task(rig.http.post(f"/v1/sandboxes/{made}/{rest}", json={"cmd": ["hang"]}))
    machine = rig.host.machines[made]
    await machine.started.wait()
    task.cancel()
    await asyncio.wait([task])
    assert machine.killed.get_nowait() == ["hang"]


async def test_a_stream_is_events_that_end_with_exit(rig: Rig, made: str) -> None:
    answer = await stream(rig, made, cmd="echo out; echo err >&2; exit 7")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.text.startswith(": beat\n\n")
    events = events_of(answer.text)
    assert events[:2] == [("stdout", {"chunk": "out\n"}), ("stderr", {"chunk": "err\n"})]
    assert events[2][0] == "exit"
    assert {"exit_code": 7, "signal": None, "oom_killed": False}.items() <= events[2][1].items()
    assert len(events) == 3


async def test_the_data_of_every_event_is_one_line_of_ascii(rig: Rig, made: str) -> None:
    text = "é\r\n\u2028\u2029 data: {} \x00 😀"
    answer = await stream(rig, made, cmd=["cat"], stdin=text)
    assert answer.text.isascii()
    assert events_of(answer.text)[0][1]["chunk"] == text


async def test_a_character_that_is_cut_is_sent_whole(rig: Rig, made: str) -> None:
    answer = await stream(rig, made, cmd=["raw", "c3", "a9", "f0", "9f", "98", "80", "41"])
    chunks = [data["chunk"] for name, data in events_of(answer.text) if name == "stdout"]
    assert chunks == ["é", "😀", "A"]


async def test_bytes_that_are_no_text_are_replaced_also_at_the_end(rig: Rig, made: str) -> None:
    answer = await stream(rig, made, cmd=["raw", "41ff42", "c3"])
    chunks = [data["chunk"] for name, data in events_of(answer.text) if name == "stdout"]
    assert "".join(chunks) == "A\ufffdB\ufffd"
    assert events_of(answer.text)[-1][0] == "exit"


async def test_base64_keeps_bytes_exact(rig: Rig, made: str) -> None:
    answer = await stream(rig, made, cmd=["raw", "41ff42", "c3", "00"], encoding="base64")
    chunks = [data["chunk"] for name, data in events_of(answer.text) if name == "stdout"]
    assert b"".join(map(base64.b64decode, chunks)) == b"A\xffB\xc3\x00"


def test_text_cut_anywhere_joins_into_itself() -> None:
    text = "aé€😀" * 3
    data = text.encode()
    for first in range(len(data)):
        for second in range(first, len(data)):
            writer = TextWriter()
            parts = [data[:first], data[first:second], data[second:]]
            assert "".join(map(writer.feed, parts)) + writer.rest() == text


async def test_a_silent_stream_beats_every_five_seconds(rig: Rig, made: str) -> None:
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(stream(rig, made, cmd="sleep 12; echo a; sleep 12"))
        await rig.host.machines[made].started.wait()
        await rig.clock.jump(24)
    lines = [line for line in asked.result().text.splitlines() if line.startswith((":", "event"))]
    assert lines == [": beat", ": beat", ": beat", "event: stdout", ": beat", ": beat", "event: exit"]


async def test_a_host_that_is_slow_to_answer_does_not_keep_a_stream_silent(rig: Rig, made: str) -> None:
    hold = rig.host.hold("exec")
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(stream(rig, made, cmd="echo a"))
        await hold.reached.wait()
        await rig.clock.jump(7)
        hold.release()
    assert asked.result().text.startswith(": beat\n\n: beat\n\nevent: stdout\n")
    assert events_of(asked.result().text)[-1][0] == "exit"


async def test_a_host_that_refuses_late_is_an_error_event(rig: Rig, made: str) -> None:
    hold = rig.host.hold("exec")
    rig.host.fail("exec", NoCapacity("not now"))
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(stream(rig, made, cmd="echo a"))
        await hold.reached.wait()
        await rig.clock.jump(2)
        hold.release()
    assert [(name, data["code"]) for name, data in events_of(asked.result().text)] == [("error", "no_capacity")]


@pytest.mark.parametrize("rest", ["exec", "exec/stream"])
async def test_a_host_that_refuses_soon_is_a_status(rig: Rig, made: str, rest: str) -> None:
    rig.host.fail("exec", NoCapacity("not now"))
    answer = await rig.http.post(f"/v1/sandboxes/{made}/{rest}", json={"cmd": "true"})
    assert (answer.status_code, answer.json()["code"]) == (503, "no_capacity")


@pytest.mark.parametrize(("times", "status", "calls"), [(1, 200, 2), (4, 200, 5), (5, 503, 5)])
async def test_a_host_that_is_busy_is_asked_again_a_few_times(
    rig: Rig, made: str, times: int, status: int, calls: int
) -> None:
    rig.host.fail("exec", Busy("it is being frozen"), times)
    assert (await run(rig, made, cmd="true")).status_code == status
    assert rig.host.calls["exec"] == calls


async def test_a_lost_answer_of_a_dead_machine_is_a_lost_sandbox(rig: Rig, made: str) -> None:
    rig.host.fail("exec", OutcomeUnknown("the line broke off"))
    rig.host.die(made)
    assert (await run(rig, made, cmd="true")).json()["code"] == "sandbox_lost"


async def test_a_timeout_in_a_stream_is_an_error_event_and_ends_it(rig: Rig, made: str) -> None:
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(stream(rig, made, cmd="echo a; sleep 9", timeout_seconds=2))
        await rig.host.machines[made].started.wait()
        await rig.clock.jump(2)
    (_, out), (name, error) = events_of(asked.result().text)
    assert (out["chunk"], name) == ("a\n", "error")
    assert (error["code"], error["error"]) == ("exec_timeout", "command timeout after 2 s")
    assert error["request_id"] == asked.result().headers["x-request-id"]


async def test_a_machine_that_dies_under_a_stream_is_an_error_event(rig: Rig, made: str) -> None:
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(stream(rig, made, cmd="echo a; hang"))
        await rig.host.machines[made].started.wait()
        await rig.clock.jump(0)
        rig.host.die(made, "killed by signal 9")
    assert [name for name, _ in events_of(asked.result().text)] == ["stdout", "error"]
    assert events_of(asked.result().text)[-1][1]["code"] == "sandbox_lost"
    assert await rig.status(made) == "failed"
