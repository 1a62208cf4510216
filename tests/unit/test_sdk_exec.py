"""Commands: output exact and in order, and every way in which a command can end or be lost."""

from __future__ import annotations

import json
from itertools import pairwise

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripted_server import VIEW, Reply, Script, answer, ended, event, refusal, streamed, wrote
from torpor import (
    AsyncSandbox,
    Busy,
    CommandFailed,
    ExecResult,
    ExecTimeout,
    InvalidRequest,
    OutcomeUnknown,
    Sandbox,
    SandboxLost,
)
from torpor.sdk import output
from torpor.sdk.results import SandboxInfo
from torpor.sdk.sse import MAX_EVENT_BYTES, EventReader, Unreadable
from torpor.wire.errors import to_body
from torpor.wire.public import MAX_STDIN_BYTES, SandboxView

INFO = SandboxInfo.of(SandboxView.model_validate(VIEW))


def run(script: Script, cmd: object = "true", **options: object) -> ExecResult:
    with script.client() as client:
        return Sandbox(client, INFO).exec(cmd, **options)  # type: ignore[arg-type]


@given(st.binary(max_size=60), st.binary(max_size=60), st.lists(st.integers(0, 400), max_size=8))
def test_output_is_exact_however_the_stream_is_cut(stdout: bytes, stderr: bytes, places: list[int]) -> None:
    sent = wrote("stdout", stdout) + b": beat\n\n" + wrote("stderr", stderr) + ended(3)
    cuts = sorted({0, len(sent), *(place % len(sent) for place in places)})
    pieces = [sent[start:end] for start, end in pairwise(cuts)]
    result = run(Script([streamed(*pieces)]))
    assert (result.stdout_bytes, result.stderr_bytes, result.exit_code) == (stdout, stderr, 3)
    assert result.stdout == stdout.decode("utf-8", "replace")


def test_callbacks_never_get_half_a_character() -> None:
    text = "é 漢 😀"
    pieces: list[str] = []
    script = Script([streamed(*(wrote("stdout", bytes([byte])) for byte in text.encode()), ended())])
    result = run(script, on_stdout=pieces.append)
    assert "".join(pieces) == result.stdout == text
    assert "\ufffd" not in pieces


def test_a_character_that_is_never_completed_is_replaced_at_the_end() -> None:
    pieces: list[str] = []
    run(Script([streamed(wrote("stderr", b"a\xe2\x82"), ended())]), on_stderr=pieces.append)
    assert pieces == ["a", "\ufffd"]


def test_callbacks_get_exact_bytes_on_request() -> None:
    pieces: list[bytes] = []
    run(Script([streamed(wrote("stdout", b"\xff\x00"), ended())]), on_stdout=pieces.append, binary=True)
    assert pieces == [b"\xff\x00"]


def test_collection_stops_at_its_bound_and_callbacks_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MAX_COLLECTED_BYTES", 5)
    pieces: list[str] = []
    script = Script([streamed(wrote("stdout", b"abc"), wrote("stdout", b"defg"), wrote("stdout", b"h"), ended())])
    result = run(script, on_stdout=pieces.append)
    assert (result.stdout, result.truncated, "".join(pieces)) == ("abcde", True, "abcdefgh")


def test_output_of_exactly_the_bound_is_not_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MAX_COLLECTED_BYTES", 3)
    assert not run(Script([streamed(wrote("stdout", b"abc"), ended())])).truncated


def test_a_signal_and_an_exhausted_memory_are_told() -> None:
    result = run(Script([streamed(ended(137, signal="SIGKILL", oom_killed=True))]))
    assert (result.exit_code, result.signal, result.oom_killed, result.duration_ms) == (137, "SIGKILL", True, 7)


def test_a_timeout_carries_the_output_so_far() -> None:
    told = to_body(ExecTimeout("command timeout after 2 s")).model_dump()
    script = Script([streamed(wrote("stdout", b"begun"), wrote("stderr", b"hm"), event("error", **told))])
    with pytest.raises(ExecTimeout, match="after 2 s") as caught:
        run(script, timeout_seconds=2)
    assert (caught.value.stdout, caught.value.stderr) == ("begun", "hm")


def test_a_machine_that_dies_under_the_command_is_told_as_lost() -> None:
    told = to_body(SandboxLost("the machine died", last_snapshot="snap-1")).model_dump()
    with pytest.raises(SandboxLost) as caught:
        run(Script([streamed(event("error", **told))]))
    assert caught.value.last_snapshot == "snap-1"


def test_a_line_that_breaks_after_the_result_loses_nothing() -> None:
    assert run(Script([streamed(ended(4), breaks=httpx2.ReadError("cut"))])).exit_code == 4


@pytest.mark.parametrize("data", [b"[]", b"{", b'{"chunk": 5}', b'{"chunk": "%%%"}'])
def test_an_event_that_cannot_be_read_is_an_unknown_outcome(data: bytes) -> None:
    # Only once is it asked for: it would not be another.
    script = Script([streamed(b"event: stdout\ndata: " + data + b"\n\n", ended())])
    with script.client() as client, pytest.raises(OutcomeUnknown, match="not in the form"):
        Sandbox(client, INFO).exec("true")


def test_an_endless_event_is_cut_off() -> None:
    reader = EventReader()
    assert list(reader.feed(b"x" * MAX_EVENT_BYTES)) == []
    with pytest.raises(Unreadable):
        list(reader.feed(b"x"))


def test_a_command_is_sent_again_only_when_it_cannot_have_run() -> None:
    script = Script([httpx2.ConnectError("refused"), refusal(Busy("wait")), streamed(ended())])
    assert run(script).exit_code == 0


def test_everything_said_about_a_command_is_sent() -> None:
    script = Script([streamed(ended())])
    run(script, ("ls", "-l"), timeout_seconds=2.5, cwd="/tmp", env={"A": "b"}, user="nobody", stdin="é")
    assert json.loads(script.received[0].body) == {
        "cmd": ["ls", "-l"],
        "timeout_seconds": 2.5,
        "cwd": "/tmp",
        "env": {"A": "b"},
        "user": "nobody",
        "stdin_base64": "w6k=",
        "encoding": "base64",
        "stdout_from": 0,
        "stderr_from": 0,
    }


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"timeout_seconds": -1}, "timeout_seconds"),
        ({"env": {"A=B": "x"}}, "env"),
        ({"env": {"A": 1}}, r"env\.A"),
        ({"user": ""}, "user"),
        ({"stdin": b"x" * (MAX_STDIN_BYTES + 1)}, "16 MiB"),
        ({"stdin": 5}, "stdin"),
        ({"stdin": "\ud800"}, "stdin: half a surrogate pair"),
    ],
)
def test_a_wrong_value_is_named_before_the_command_is_sent(options: dict[str, object], word: str) -> None:
    with pytest.raises(InvalidRequest, match=word):
        run(Script([]), **options)


def test_check_raises_with_the_end_of_stderr() -> None:
    script = Script([streamed(wrote("stdout", b"out"), wrote("stderr", b"1\n2\n3\n4\n5\n6\n"), ended(2))])
    with pytest.raises(CommandFailed, match="ended with code 2: 2\n3\n4\n5\n6") as caught:
        run(script, check=True)
    assert (caught.value.exit_code, caught.value.stdout) == (2, "out")


def test_without_check_a_code_is_a_result() -> None:
    assert run(Script([streamed(ended(1))])).exit_code == 1


async def test_an_async_callback_may_be_a_function_or_a_coroutine() -> None:
    plain: list[str] = []
    awaited: list[str] = []

    async def keep(piece: str) -> None:
        awaited.append(piece)

    script = Script([streamed(wrote("stdout", b"o"), wrote("stderr", b"e"), ended())])
    async with script.async_client() as client:
        await AsyncSandbox(client, INFO).exec("x", on_stdout=plain.append, on_stderr=keep)
    assert (plain, awaited) == (["o"], ["e"])


async def test_commands_run_is_another_name_of_exec() -> None:
    script = Script([streamed(wrote("stdout", b"1"), ended()), streamed(wrote("stdout", b"2"), ended())])
    with script.client() as client:
        assert Sandbox(client, INFO).commands.run("x").stdout == "1"
    async with script.async_client() as client:
        assert (await AsyncSandbox(client, INFO).commands.run("x")).stdout == "2"


async def test_an_async_create_can_be_awaited_or_entered() -> None:
    script = Script([answer(VIEW, 201), answer(VIEW, 201), Reply(204)])
    async with script.async_client() as client:
        assert (await AsyncSandbox.create(client=client)).state == "running"
        async with AsyncSandbox.create(client=client) as sandbox:
            assert sandbox.id == VIEW["id"]
    assert script.answers == []
