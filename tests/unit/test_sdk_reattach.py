"""A command that is listened to: where the line breaks it is gone on with, and whoever is interrupted ends it."""

from __future__ import annotations

import asyncio
import json
import time

import httpx2
import pytest

from scripted_server import (
    PROCESS,
    RESIGNED,
    VIEW,
    Received,
    Reply,
    Script,
    answer,
    ended,
    event,
    refusal,
    started,
    streamed,
    wrote,
)
from torpor import (
    AsyncClient,
    AsyncSandbox,
    Busy,
    ExecResult,
    HostUnreachable,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Retry,
    Sandbox,
    SandboxLost,
)
from torpor.sdk.results import SandboxInfo
from torpor.sdk.retry import Reattaching
from torpor.wire.errors import to_body
from torpor.wire.public import SandboxView

INFO = SandboxInfo.of(SandboxView.model_validate(VIEW))
JOB = str(PROCESS["id"])
EXEC = f"/v1/sandboxes/{INFO.id}/exec/stream"
PROCESSES = f"/v1/sandboxes/{INFO.id}/processes"
CUT = httpx2.ReadError("cut")


def run(script: Script, retry: Retry | None = None, **options: object) -> ExecResult:
    with script.client(retry) if retry else script.client() as client:
        return Sandbox(client, INFO).exec("make", **options)  # type: ignore[arg-type]


def asked(script: Script) -> list[str]:
    return [f"{one.method} {one.path}" for one in script.received]


def key_of(request: Received) -> str:
    return request.headers["idempotency-key"]


def place(script: Script) -> str:
    """The path of the command that the script's first request ordered."""
    return f"{PROCESSES}/key:{key_of(script.received[0])}"


def test_a_broken_line_is_gone_on_with_from_the_byte_it_broke_at() -> None:
    heard: list[bytes] = []
    script = Script(
        [
            streamed(
                wrote("stdout", b"ab"),
                wrote("stderr", b"!"),
                wrote("stdout", b"lost")[:-9],
                breaks=CUT,
            ),
            streamed(wrote("stdout", b"c"), breaks=httpx2.ReadTimeout("silent")),
            streamed(wrote("stdout", b"d")),
            streamed(wrote("stderr", b"?"), ended(3)),
        ]
    )
    result = run(script, on_stdout=heard.append, binary=True)
    assert (result.stdout, result.stderr, result.exit_code, b"".join(heard)) == ("abcd", "!?", 3, b"abcd")
    assert asked(script) == [f"POST {EXEC}", *[f"GET {place(script)}/stream"] * 3]
    offsets = [(one.query["stdout_from"], one.query["stderr_from"]) for one in script.received[1:]]
    assert offsets == [("2", "1"), ("3", "1"), ("4", "1")]


def test_a_character_that_is_cut_with_the_line_is_whole_for_the_callback() -> None:
    heard: list[str] = []
    first, last = streamed(wrote("stdout", b"\xe2\x82")), streamed(wrote("stdout", b"\xac"), ended())
    assert run(Script([first, last]), on_stdout=heard.append).stdout == "€"
    assert heard == ["€"]


def test_an_order_whose_answer_was_lost_is_sent_again_under_its_key_and_runs_once() -> None:
    gone = httpx2.RemoteProtocolError("gone without an answer")
    script = Script([gone, httpx2.ConnectError("restarting"), refusal(Busy("wait")), streamed(ended(4))])
    assert run(script).exit_code == 4
    assert asked(script) == [f"POST {EXEC}"] * 4
    assert len({key_of(one) for one in script.received}) == 1


def test_a_silent_line_that_breaks_before_the_guest_has_the_command_brings_the_order_again() -> None:
    script = Script([streamed(b": beat\n\n", breaks=CUT, x_process_id=JOB), streamed(started(), ended(6))])
    assert run(script).exit_code == 6
    assert asked(script) == [f"POST {EXEC}"] * 2
    assert key_of(script.received[0]) == key_of(script.received[1])


def test_once_the_guest_has_the_command_it_is_never_ordered_again() -> None:
    script = Script([streamed(started(), breaks=CUT), streamed(b": beat\n\n", breaks=CUT), streamed(ended(6))])
    assert run(script).exit_code == 6
    assert asked(script) == [f"POST {EXEC}", *[f"GET {place(script)}/stream"] * 2]


def test_output_that_was_not_kept_for_long_enough_is_passed_over_and_told_of() -> None:
    kept = PROCESS | {"stdout_start": 900, "stdout_bytes": 903}
    script = Script(
        [
            streamed(wrote("stdout", b"ab"), breaks=CUT),
            refusal(InvalidRequest("stdout is kept from 900 on")),
            answer(kept),
            streamed(wrote("stdout", b"yz"), ended()),
        ]
    )
    result = run(script)
    assert (result.stdout, result.truncated) == ("abyz", True)
    assert [one.query.get("stdout_from") for one in script.received] == [None, "2", None, "900"]


def test_a_command_that_always_outruns_its_listener_is_given_up() -> None:
    refused = refusal(InvalidRequest("stdout is not kept from there"))
    kept = [answer(PROCESS | {"stdout_start": 900 + more, "stdout_bytes": 990}) for more in range(5)]
    script = Script([streamed(started(), breaks=CUT), *[line for one in kept for line in (refused, one)], refused])
    with pytest.raises(InvalidRequest, match="not kept from there"):
        run(script)
    assert script.answers == []


def test_a_refusal_that_has_another_reason_is_raised() -> None:
    refused = refusal(InvalidRequest("there is no byte 2 yet"))
    script = Script([streamed(wrote("stdout", b"ab"), breaks=CUT), refused, answer(PROCESS)])
    with pytest.raises(InvalidRequest, match="no byte 2"):
        run(script)


def test_two_commands_bear_different_keys() -> None:
    script = Script([streamed(ended()), streamed(ended())])
    run(script)
    run(script)
    assert len({key_of(one) for one in script.received}) == 2


def test_an_error_that_the_server_expects_to_pass_is_waited_out() -> None:
    told = to_body(HostUnreachable("the host agent restarts")).model_dump()
    script = Script([streamed(event("error", **told)), streamed(ended(5))])
    assert run(script).exit_code == 5


def test_a_definite_error_is_raised_at_once() -> None:
    told = to_body(SandboxLost("the machine died")).model_dump()
    with pytest.raises(SandboxLost):
        run(Script([streamed(event("error", **told))]))


def test_input_is_sent_again_only_where_the_command_is_still_there() -> None:
    script = Script([streamed(wrote("stdout", b"ab"), breaks=CUT), answer(PROCESS), streamed(ended())])
    run(script, stdin="in")
    assert asked(script) == [f"POST {EXEC}", f"GET {place(script)}", f"POST {EXEC}"]
    again = json.loads(script.received[2].body)
    assert (again["stdin_base64"], again["stdout_from"], key_of(script.received[2])) == (
        "aW4=",
        2,
        key_of(script.received[0]),
    )


@pytest.mark.parametrize("stdin", [None, "in"])
def test_a_command_that_a_rollback_undid_is_not_run_again(stdin: str | None) -> None:
    script = Script([streamed(started(), breaks=CUT), refusal(NotFound("there is no process"))])
    with pytest.raises(OutcomeUnknown, match="not there any more"):
        run(script, stdin=stdin)
    assert script.received[-1].method == "GET"


def test_a_server_that_stays_away_leaves_the_outcome_unknown() -> None:
    script = Script([streamed(wrote("stdout", b"x"), breaks=CUT)])
    with pytest.raises(OutcomeUnknown, match=r"broke before.*the command may still be running"):
        run(script, RESIGNED)
    assert asked(script) == [f"POST {EXEC}"]


def test_a_server_that_was_never_there_is_not_waited_for_as_one_that_went_away() -> None:
    with pytest.raises(HostUnreachable):
        run(Script([httpx2.ConnectError("refused")] * 4))


def test_patience_begins_anew_with_every_byte() -> None:
    patient = Retry(attempts=1, first_delay_s=0.0, longest_delay_s=0.0, reattach_s=0.2)
    lines = [streamed(wrote("stdout", b"."), breaks=CUT) for _ in range(200)]
    assert len(run(Script([*lines, streamed(ended())]), patient).stdout) == 200


@pytest.mark.parametrize("begun", [b"", started()])
def test_signs_of_life_alone_do_not_keep_the_patience_up(begun: bytes) -> None:
    patient = Retry(attempts=1, first_delay_s=0.0, longest_delay_s=0.0, reattach_s=0.05)
    beats = [streamed(*[b": beat\n\n"] * 3, breaks=CUT) for _ in range(100_000)]
    script = Script([streamed(begun, breaks=CUT), *beats])
    with pytest.raises(OutcomeUnknown):
        run(script, patient)


def test_a_line_that_held_for_long_costs_no_patience_when_it_breaks() -> None:
    patience = Reattaching(Retry(first_delay_s=0.0, longest_delay_s=0.0, reattach_s=0.05))
    patience.progress()
    until = time.monotonic() + 0.06
    while time.monotonic() < until:  # nothing is heard for longer than that
        pass
    assert patience.delay_s(OutcomeUnknown("broke")) == 0.0


def test_ctrl_c_kills_the_command() -> None:
    script = Script([streamed(wrote("stdout", b"x"), breaks=KeyboardInterrupt()), Reply(204)])
    with pytest.raises(KeyboardInterrupt):
        run(script)
    assert asked(script)[-1] == f"POST {place(script)}/signal"
    assert json.loads(script.received[-1].body) == {"signal": "SIGKILL"}


@pytest.mark.parametrize("reply", [Reply(204), refusal(NotFound("there is no process"))])
def test_who_is_interrupted_before_an_answer_kills_what_has_the_key_and_starts_nothing(reply: Reply) -> None:
    script = Script([KeyboardInterrupt(), reply])
    with pytest.raises(KeyboardInterrupt):
        run(script)
    assert asked(script) == [f"POST {EXEC}", f"POST {place(script)}/signal"]


def test_an_error_in_a_callback_is_the_callers_own_and_kills_the_command() -> None:
    def upset(_: str) -> None:
        raise HostUnreachable("of the caller's own doing")

    script = Script([streamed(wrote("stdout", b"x"), ended()), Reply(204)])
    with pytest.raises(HostUnreachable, match="own doing"):
        run(script, on_stdout=upset)
    assert asked(script) == [f"POST {EXEC}", f"POST {place(script)}/signal"]


def test_a_kill_that_does_not_get_through_hides_nothing() -> None:
    script = Script([streamed(breaks=KeyboardInterrupt()), httpx2.ConnectError("away")])
    with pytest.raises(KeyboardInterrupt):
        run(script)
    assert script.answers == []


async def test_cancelling_an_exec_kills_the_command() -> None:
    class Endless(httpx2.AsyncByteStream):
        async def __aiter__(self):  # type: ignore[no-untyped-def]
            yield wrote("stdout", b"x")
            await asyncio.Event().wait()

    heard = asyncio.Event()
    requests: list[str] = []
    keys: list[str] = []

    def reply(request: httpx2.Request) -> httpx2.Response:
        requests.append(request.url.path)
        if request.url.path == EXEC:
            keys.append(request.headers["idempotency-key"])
            return httpx2.Response(200, stream=Endless())
        return Reply(204).response()

    async with AsyncClient("http://127.0.0.1:1", "k", transport=httpx2.MockTransport(reply)) as client:
        running = asyncio.create_task(AsyncSandbox(client, INFO).exec("hang", on_stdout=lambda _: heard.set()))
        await heard.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert requests == [EXEC, f"{PROCESSES}/key:{keys[0]}/signal"]


@pytest.mark.parametrize("wrong", ["", "nonsense", "job-1", "../x", "sbx-0123456789bcdfgh"])
def test_what_is_no_process_is_refused_before_anything_is_sent(wrong: str) -> None:
    with Script([]).client() as client, pytest.raises(InvalidRequest, match="not the id of a process"):
        Sandbox(client, INFO).attach(wrong)
