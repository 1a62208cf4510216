"""A command that is listened to: where the line breaks it is gone on with, and whoever is interrupted ends it."""

from __future__ import annotations

import asyncio
import json

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
from torpor.wire.errors import to_body
from torpor.wire.public import SandboxView

INFO = SandboxInfo.of(SandboxView.model_validate(VIEW))
JOB = str(PROCESS["id"])
EXEC = f"/v1/sandboxes/{INFO.id}/exec/stream"
AT = f"/v1/sandboxes/{INFO.id}/processes/{JOB}"
CUT = httpx2.ReadError("cut")


def run(script: Script, retry: Retry | None = None, **options: object) -> ExecResult:
    with script.client(retry) if retry else script.client() as client:
        return Sandbox(client, INFO).exec("make", **options)  # type: ignore[arg-type]


def asked(script: Script) -> list[str]:
    return [f"{one.method} {one.path}" for one in script.received]


def key_of(request: Received) -> str:
    return request.headers["idempotency-key"]


def test_a_broken_line_is_gone_on_with_from_the_byte_it_broke_at() -> None:
    heard: list[bytes] = []
    script = Script(
        [
            streamed(
                wrote("stdout", b"ab"),
                wrote("stderr", b"!"),
                wrote("stdout", b"lost")[:-9],
                breaks=CUT,
                x_process_id=JOB,
            ),
            streamed(wrote("stdout", b"c"), breaks=httpx2.ReadTimeout("silent")),
            streamed(wrote("stdout", b"d")),
            streamed(wrote("stderr", b"?"), ended(3)),
        ]
    )
    result = run(script, on_stdout=heard.append, binary=True)
    assert (result.stdout, result.stderr, result.exit_code, b"".join(heard)) == ("abcd", "!?", 3, b"abcd")
    assert asked(script) == [f"POST {EXEC}", *[f"GET {AT}/stream"] * 3]
    offsets = [(one.query["stdout_from"], one.query["stderr_from"]) for one in script.received[1:]]
    assert offsets == [("2", "1"), ("3", "1"), ("4", "1")]


def test_a_character_that_is_cut_with_the_line_is_whole_for_the_callback() -> None:
    heard: list[str] = []
    first, last = streamed(wrote("stdout", b"\xe2\x82"), x_process_id=JOB), streamed(wrote("stdout", b"\xac"), ended())
    assert run(Script([first, last]), on_stdout=heard.append).stdout == "€"
    assert heard == ["€"]


def test_an_order_whose_answer_was_lost_is_sent_again_under_its_key_and_runs_once() -> None:
    gone = httpx2.RemoteProtocolError("gone without an answer")
    script = Script([gone, httpx2.ConnectError("restarting"), refusal(Busy("wait")), streamed(ended(4))])
    assert run(script).exit_code == 4
    assert asked(script) == [f"POST {EXEC}"] * 4
    assert len({key_of(one) for one in script.received}) == 1


def test_two_commands_bear_different_keys() -> None:
    script = Script([streamed(ended()), streamed(ended())])
    run(script)
    run(script)
    assert len({key_of(one) for one in script.received}) == 2


def test_an_error_that_the_server_expects_to_pass_is_waited_out() -> None:
    told = to_body(HostUnreachable("the host agent restarts")).model_dump()
    script = Script([streamed(event("error", **told), x_process_id=JOB), streamed(ended(5))])
    assert run(script).exit_code == 5


def test_a_definite_error_is_raised_at_once() -> None:
    told = to_body(SandboxLost("the machine died")).model_dump()
    with pytest.raises(SandboxLost):
        run(Script([streamed(event("error", **told), x_process_id=JOB)]))


def test_input_is_sent_again_only_where_the_command_is_still_there() -> None:
    script = Script(
        [streamed(wrote("stdout", b"ab"), breaks=CUT, x_process_id=JOB), answer(PROCESS), streamed(ended())]
    )
    run(script, stdin="in")
    assert asked(script) == [f"POST {EXEC}", f"GET {AT}", f"POST {EXEC}"]
    again = json.loads(script.received[2].body)
    assert (again["stdin_base64"], again["stdout_from"], key_of(script.received[2])) == (
        "aW4=",
        2,
        key_of(script.received[0]),
    )


@pytest.mark.parametrize("stdin", [None, "in"])
def test_a_command_that_a_rollback_undid_is_not_run_again(stdin: str | None) -> None:
    script = Script([streamed(breaks=CUT, x_process_id=JOB), refusal(NotFound("there is no process"))])
    with pytest.raises(OutcomeUnknown, match="not there any more"):
        run(script, stdin=stdin)
    assert script.received[-1].method == "GET"


def test_a_server_that_stays_away_leaves_the_outcome_unknown() -> None:
    script = Script([streamed(wrote("stdout", b"x"), breaks=CUT, x_process_id=JOB)])
    with pytest.raises(OutcomeUnknown, match=r"broke before.*the command may still be running"):
        run(script, RESIGNED)
    assert asked(script) == [f"POST {EXEC}"]


def test_a_server_that_was_never_there_is_not_waited_for_as_one_that_went_away() -> None:
    with pytest.raises(HostUnreachable):
        run(Script([httpx2.ConnectError("refused")] * 4))


def test_patience_begins_anew_with_every_byte() -> None:
    patient = Retry(attempts=1, first_delay_s=0.0, longest_delay_s=0.0, reattach_s=0.2)
    lines = [streamed(wrote("stdout", b"."), breaks=CUT, x_process_id=JOB) for _ in range(200)]
    assert len(run(Script([*lines, streamed(ended())]), patient).stdout) == 200


def test_ctrl_c_kills_the_command() -> None:
    script = Script([streamed(wrote("stdout", b"x"), breaks=KeyboardInterrupt(), x_process_id=JOB), Reply(204)])
    with pytest.raises(KeyboardInterrupt):
        run(script)
    assert (asked(script)[-1], json.loads(script.received[-1].body)) == (f"POST {AT}/signal", {"signal": "SIGKILL"})


def test_a_command_whose_id_is_not_known_yet_is_asked_for_it_and_killed() -> None:
    script = Script([KeyboardInterrupt(), streamed(x_process_id=JOB), Reply(204)])
    with pytest.raises(KeyboardInterrupt):
        run(script)
    assert asked(script) == [f"POST {EXEC}", f"POST {EXEC}", f"POST {AT}/signal"]
    assert key_of(script.received[0]) == key_of(script.received[1])


def test_an_error_in_a_callback_is_the_callers_own_and_kills_the_command() -> None:
    def upset(_: str) -> None:
        raise HostUnreachable("of the caller's own doing")

    script = Script([streamed(wrote("stdout", b"x"), ended(), x_process_id=JOB), Reply(204)])
    with pytest.raises(HostUnreachable, match="own doing"):
        run(script, on_stdout=upset)
    assert asked(script) == [f"POST {EXEC}", f"POST {AT}/signal"]


def test_a_kill_that_does_not_get_through_hides_nothing() -> None:
    script = Script([streamed(breaks=KeyboardInterrupt(), x_process_id=JOB), httpx2.ConnectError("away")])
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

    def reply(request: httpx2.Request) -> httpx2.Response:
        requests.append(request.url.path)
        if request.url.path == EXEC:
            return httpx2.Response(200, headers={"x-process-id": JOB}, stream=Endless())
        return Reply(204).response()

    async with AsyncClient("http://127.0.0.1:1", "k", transport=httpx2.MockTransport(reply)) as client:
        running = asyncio.create_task(AsyncSandbox(client, INFO).exec("hang", on_stdout=lambda _: heard.set()))
        await heard.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert requests == [EXEC, f"{AT}/signal"]


@pytest.mark.parametrize("wrong", ["", "nonsense", "job-1", "../x", "sbx-0123456789bcdfgh"])
def test_what_is_no_process_is_refused_before_anything_is_sent(wrong: str) -> None:
    with Script([]).client() as client, pytest.raises(InvalidRequest, match="not the id of a process"):
        Sandbox(client, INFO).attach(wrong)
