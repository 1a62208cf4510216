"""Commands with an id: they outlive whoever started them, and are found again."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from control_rig import NOBODY, PATIENCE_S, Rig, control_rig, events_of
from torpor.control.api.answers import BEAT_S
from torpor.control.api.stream import START_S
from torpor.model.ids import is_job_id, job_id_from
from torpor.wire.processes import MAX_INPUT_BYTES

UNKNOWN = "job-0000000000000000"


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


@pytest.fixture
async def made(rig: Rig) -> str:
    return await rig.create(env={"GREETING": "hello"})


async def start(rig: Rig, made: str, key: str | None = None, **body: Any) -> Any:
    headers = {} if key is None else {"idempotency-key": key}
    answer = await rig.http.post(f"/v1/sandboxes/{made}/processes", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def stream(rig: Rig, made: str, process: str, **query: Any) -> list[tuple[str, dict[str, Any]]]:
    answer = await rig.http.get(f"/v1/sandboxes/{made}/processes/{process}/stream", params=query)
    assert answer.status_code == 200, answer.text
    return events_of(answer.text)


async def ask(rig: Rig, made: str, rest: str, key: str, **body: Any) -> httpx2.Response:
    return await rig.http.post(f"/v1/sandboxes/{made}/{rest}", json=body, headers={"idempotency-key": key})


def written(events: list[tuple[str, dict[str, Any]]], name: str = "stdout") -> str:
    return "".join(data["chunk"] for kind, data in events if kind == name)


async def test_a_process_is_described_at_once_and_its_end_is_known_later(rig: Rig, made: str) -> None:
    begun = await start(rig, made, cmd="echo $GREETING; echo oh >&2; exit 7", user="root")
    assert is_job_id(begun["id"])
    assert (begun["sandbox_id"], begun["kind"], begun["user"]) == (made, "process", "root")
    assert begun["command"] == "echo $GREETING; echo oh >&2; exit 7"
    events = await stream(rig, made, begun["id"])
    assert (written(events), written(events, "stderr")) == ("hello\n", "oh\n")
    assert events[-1][0] == "exit"
    assert events[-1][1]["exit_code"] == 7
    ended = (await rig.http.get(f"/v1/sandboxes/{made}/processes/{begun['id']}")).json()
    assert (ended["state"], ended["exit_code"], ended["stdout_bytes"], ended["stderr_bytes"]) == ("ended", 7, 6, 3)
    assert (await rig.http.get(f"/v1/sandboxes/{made}/processes")).json() == {"items": [ended]}


async def test_output_can_be_had_again_from_any_offset_and_as_exact_bytes(rig: Rig, made: str) -> None:
    begun = await start(rig, made, cmd=["raw", "00ff", "61c3", "a9"])
    assert (await stream(rig, made, begun["id"]))[-1][0] == "exit"
    for since in range(6):
        events = await stream(rig, made, begun["id"], stdout_from=since, encoding="base64")
        chunks = [base64.b64decode(data["chunk"]) for kind, data in events if kind == "stdout"]
        assert b"".join(chunks) == b"\x00\xffa\xc3\xa9"[since:]
    url = f"/v1/sandboxes/{made}/processes/{begun['id']}/stream"
    beyond = await rig.http.get(url, params={"stdout_from": 6})
    assert (beyond.status_code, beyond.json()["code"]) == (400, "invalid_request")


async def test_input_is_sent_in_parts_and_closed(rig: Rig, made: str) -> None:
    begun = await start(rig, made, cmd=["cat"], open_stdin=True)
    url = f"/v1/sandboxes/{made}/processes/{begun['id']}"
    assert (await rig.http.post(f"{url}/stdin", content=b"one ")).json() == {"bytes": 4}
    assert (await rig.http.get(url)).json()["state"] == "running"
    assert (await rig.http.post(f"{url}/stdin?close=true", content=b"two")).json() == {"bytes": 3}
    events = await stream(rig, made, begun["id"])
    assert (written(events), events[-1][1]["exit_code"]) == ("one two", 0)
    late = await rig.http.post(f"{url}/stdin", content=b"three")
    assert (late.status_code, late.json()["code"]) == (409, "conflict")


async def test_more_input_than_fits_into_a_request_is_refused(rig: Rig, made: str) -> None:
    begun = await start(rig, made, cmd=["cat"], open_stdin=True)
    url = f"/v1/sandboxes/{made}/processes/{begun['id']}/stdin"
    over = await rig.http.post(url, content=bytes(MAX_INPUT_BYTES + 1))
    assert (over.status_code, over.json()["hint"]) == (400, "send it in parts")
    assert rig.host.calls["feed"] == 0


@pytest.mark.parametrize(("signal", "code"), [("SIGKILL", 137), ("SIGTERM", 143), (None, 137)])
async def test_a_signal_ends_it_and_is_told(rig: Rig, made: str, signal: str | None, code: int) -> None:
    begun = await start(rig, made, cmd="hang")
    url = f"/v1/sandboxes/{made}/processes/{begun['id']}/signal"
    body = {} if signal is None else {"signal": signal}
    assert (await rig.http.post(url, json=body)).status_code == 204
    last = (await stream(rig, made, begun["id"]))[-1]
    assert (last[0], last[1]["exit_code"], last[1]["signal"]) == ("exit", code, signal or "SIGKILL")
    again = await rig.http.post(url, json=body)
    assert (again.status_code, again.json()["code"]) == (409, "conflict")


@pytest.mark.parametrize("signal", ["KILL", "SIGNONSENSE", "sigkill", 9])
async def test_a_signal_that_is_none_is_refused(rig: Rig, made: str, signal: object) -> None:
    begun = await start(rig, made, cmd="hang")
    answer = await rig.http.post(f"/v1/sandboxes/{made}/processes/{begun['id']}/signal", json={"signal": signal})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("process", [UNKNOWN, "nonsense", "job-", "job-000000000000000/x"])
async def test_a_process_that_is_not_known_is_not_found(rig: Rig, made: str, process: str) -> None:
    url = f"/v1/sandboxes/{made}/processes/{process}"
    answers = [
        await rig.http.get(url),
        await rig.http.get(f"{url}/stream"),
        await rig.http.post(f"{url}/stdin", content=b"a"),
        await rig.http.post(f"{url}/signal", json={}),
    ]
    assert {(answer.status_code, answer.json()["code"]) for answer in answers} == {(404, "not_found")}


async def test_processes_of_nobody_are_not_found(rig: Rig) -> None:
    url = f"/v1/sandboxes/{NOBODY}/processes"
    answers = [await rig.http.get(url), await rig.http.post(url, json={"cmd": "true"})]
    assert {answer.status_code for answer in answers} == {404}


@pytest.mark.parametrize("body", [{}, {"cmd": ""}, {"cmd": "a", "cwd": "here"}, {"cmd": "a", "open_stdin": 1}])
async def test_a_bad_process_is_refused(rig: Rig, made: str, body: dict[str, Any]) -> None:
    answer = await rig.http.post(f"/v1/sandboxes/{made}/processes", json=body)
    assert answer.status_code == 400
    assert rig.host.calls["start"] == 0


async def test_one_key_starts_one_process_and_another_command_is_a_conflict(rig: Rig, made: str) -> None:
    first, again = [await start(rig, made, key="k", cmd=["count", "runs"]) for _ in range(2)]
    assert first["id"] == again["id"] == job_id_from("default", made, "k")
    assert written(await stream(rig, made, first["id"])) == "1\n"
    other = await ask(rig, made, "processes", "k", cmd="true")
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    assert [kind for kind, _ in await rig.told(made, "process")] == ["process"]


@pytest.mark.parametrize("rest", ["processes", "exec"])
async def test_a_retry_after_a_lost_answer_finds_the_command_and_runs_it_once(rig: Rig, made: str, rest: str) -> None:
    rig.host.lose_answer("start" if rest == "processes" else "exec")
    lost = await ask(rig, made, rest, "k", cmd="count runs")
    assert (lost.status_code, lost.json()["code"]) == (500, "outcome_unknown")
    assert (await ask(rig, made, rest, "k", cmd="count runs")).is_success
    assert written(await stream(rig, made, job_id_from("default", made, "k"))) == "1\n"


@pytest.mark.parametrize("rest", ["processes", "exec", "exec/stream"])
async def test_a_key_that_is_none_is_refused(rig: Rig, made: str, rest: str) -> None:
    answer = await ask(rig, made, rest, "two words", cmd="true")
    assert answer.status_code == 400
    assert "Idempotency-Key" in answer.json()["error"]


async def test_a_sandbox_that_sleeps_is_woken_by_asking_for_its_processes(rig: Rig, made: str) -> None:
    begun = await start(rig, made, cmd="hang")
    await rig.post(made, "hibernate")
    listed = (await rig.http.get(f"/v1/sandboxes/{made}/processes")).json()["items"]
    assert [(one["id"], one["state"]) for one in listed] == [(begun["id"], "running")]
    assert await rig.status(made) == "running"


@pytest.mark.parametrize("rest", ["exec", "exec/stream"])
async def test_a_command_with_a_key_says_its_id_and_goes_on_when_nobody_listens(rig: Rig, made: str, rest: str) -> None:
    asking = asyncio.create_task(ask(rig, made, rest, "k", cmd="sleep 5; count runs"))
    await asyncio.wait_for(rig.host.machines[made].started.wait(), PATIENCE_S)
    asking.cancel()
    await asyncio.wait([asking])
    assert rig.host.machines[made].killed.empty()
    await rig.clock.jump(5)
    found = await ask(rig, made, rest, "k", cmd="sleep 5; count runs")
    assert found.headers["x-process-id"] == job_id_from("default", made, "k")
    if rest == "exec":
        assert (found.json()["stdout"], found.json()["exit_code"]) == ("1\n", 0)
    else:
        events = events_of(found.text)
        assert (written(events), events[-1][0]) == ("1\n", "exit")
    listed = (await rig.http.get(f"/v1/sandboxes/{made}/processes")).json()["items"]
    assert [(one["kind"], one["exit_code"]) for one in listed] == [("exec", 0)]


async def test_a_command_is_listened_to_again_from_where_the_listener_had_come(rig: Rig, made: str) -> None:
    body = {"cmd": "echo one; sleep 5; echo two; echo oh >&2", "encoding": "base64"}
    asking = asyncio.create_task(ask(rig, made, "exec/stream", "k", **body))
    await asyncio.wait_for(rig.host.machines[made].started.wait(), PATIENCE_S)
    rig.host.crash()
    broken = await asking
    events = events_of(broken.text)
    assert "exit" not in {kind for kind, _ in events}, "a broken stream is no end"
    assert [data["code"] for kind, data in events if kind == "error"] in ([], ["outcome_unknown"])
    got = b"".join(base64.b64decode(data["chunk"]) for kind, data in events if kind == "stdout")
    assert b"one\n".startswith(got)
    await rig.clock.jump(5)
    rest = events_of((await ask(rig, made, "exec/stream", "k", **body, stdout_from=len(got))).text)
    got += b"".join(base64.b64decode(data["chunk"]) for kind, data in rest if kind == "stdout")
    assert (got, rest[-1][0]) == (b"one\ntwo\n", "exit")


@pytest.mark.parametrize("rest", ["exec", "exec/stream"])
async def test_the_same_key_with_another_command_is_a_conflict(rig: Rig, made: str, rest: str) -> None:
    assert (await ask(rig, made, rest, "k", cmd="echo a")).status_code == 200
    other = await ask(rig, made, rest, "k", cmd="echo b")
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    assert (await ask(rig, made, rest, "k2", cmd="echo b")).status_code == 200


async def test_a_command_without_a_key_has_no_id(rig: Rig, made: str) -> None:
    answer = await rig.http.post(f"/v1/sandboxes/{made}/exec", json={"cmd": "true", "stdout_from": 100})
    assert (answer.status_code, "x-process-id" in answer.headers) == (200, False)
    assert (await rig.http.get(f"/v1/sandboxes/{made}/processes")).json() == {"items": []}


async def test_a_timeout_is_part_of_what_is_remembered(rig: Rig, made: str) -> None:
    begun = await start(rig, made, cmd="hang", timeout_seconds=5)
    await rig.clock.jump(5)
    last = (await stream(rig, made, begun["id"]))[-1]
    assert (last[0], last[1]["code"]) == ("error", "exec_timeout")
    shown = (await rig.http.get(f"/v1/sandboxes/{made}/processes/{begun['id']}")).json()
    assert (shown["timed_out"], shown["exit_code"], shown["signal"]) == (True, 137, "SIGKILL")
    asked = await ask(rig, made, "exec", "k", cmd="true", timeout_seconds=5)
    assert asked.status_code == 200


async def test_the_end_of_a_command_is_noted_once_however_often_it_is_heard(rig: Rig, made: str) -> None:
    for _ in range(3):
        await ask(rig, made, "exec", "k", cmd="exit 3")
    await rig.http.post(f"/v1/sandboxes/{made}/exec", json={"cmd": ["echo", "x" * 300]})
    begun = await start(rig, made, cmd="exit 4")
    for _ in range(2):
        await stream(rig, made, begun["id"])
    told = [data for _, data in await rig.told(made, "exec")]
    assert [(data["kind"], data["exit_code"]) for data in told] == [("exec", 3), ("exec", 0), ("process", 4)]
    assert [data["command"] for data in told] == ["exit 3", ("echo " + "x" * 300)[:200], "exit 4"]
    assert await rig.told(made, "process") == [("process", {"job": begun["id"], "command": "exit 4"})]


async def test_a_process_outlives_the_host_agent(rig: Rig, made: str) -> None:
    begun = await start(rig, made, cmd="echo one; sleep 5; echo two")
    listening = asyncio.create_task(rig.http.get(f"/v1/sandboxes/{made}/processes/{begun['id']}/stream"))
    await rig.clock.jump(1)
    rig.host.crash()
    assert "event: exit" not in (await listening).text
    await rig.clock.jump(5)
    assert written(await stream(rig, made, begun["id"])) == "one\ntwo\n"


async def test_a_process_is_named_by_the_key_it_was_ordered_with(rig: Rig, made: str) -> None:
    begun = await start(rig, made, key="k~1", cmd="echo one; hang")
    url = f"/v1/sandboxes/{made}/processes/key:k~1"
    assert (await rig.http.get(url)).json()["id"] == begun["id"]
    assert (await rig.http.post(f"{url}/signal", json={})).status_code == 204
    answer = await rig.http.get(f"{url}/stream")
    assert (written(events_of(answer.text)), answer.headers["x-process-id"]) == ("one\n", begun["id"])
    assert (await rig.http.post(f"{url}/stdin", content=b"a")).status_code == 409
    assert (await rig.http.get(f"/v1/sandboxes/{made}/processes/key:other")).status_code == 404


@pytest.mark.parametrize("key", ["", "two%20words", "k" * 256, "k" * 600])
async def test_a_process_is_not_named_by_a_key_that_is_none(rig: Rig, made: str, key: str) -> None:
    for rest in ("", "/stream"):
        answer = await rig.http.get(f"/v1/sandboxes/{made}/processes/key:{key}{rest}")
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


async def test_started_is_told_before_all_else_where_a_command_has_an_id(rig: Rig, made: str) -> None:
    events = events_of((await ask(rig, made, "exec/stream", "k", cmd="echo one")).text)
    assert events[0] == ("started", {"process_id": job_id_from("default", made, "k")})
    assert [kind for kind, _ in events] == ["started", "stdout", "exit"]
    assert [kind for kind, _ in events_of((await ask(rig, made, "exec/stream", "k2", cmd="true")).text)] == [
        "started",
        "exit",
    ]
    keyless = await rig.http.post(f"/v1/sandboxes/{made}/exec/stream", json={"cmd": "echo one"})
    assert [kind for kind, _ in events_of(keyless.text)] == ["stdout", "exit"]
    again = await stream(rig, made, "key:k")
    assert [kind for kind, _ in again] == ["started", "stdout", "exit"]


@pytest.mark.parametrize("after_s", [START_S, START_S + 2 * BEAT_S])
async def test_started_is_told_of_a_silent_command_once_the_guest_has_it_and_not_before(
    rig: Rig, made: str, after_s: float
) -> None:
    waking = None
    if after_s > START_S:  # the command waits for the sandbox to wake, and so is not in the guest yet
        await rig.post(made, "hibernate")
        waking = rig.host.hold("wake")
    said = f"/v1/sandboxes/{made}/exec/stream"
    order = rig.http.build_request("POST", said, json={"cmd": "hang"}, headers={"idempotency-key": "k"})
    sending = asyncio.create_task(rig.http.send(order, stream=True))
    if waking is not None:
        await asyncio.wait_for(waking.reached.wait(), PATIENCE_S)
        await rig.clock.wait_sleepers()
        await rig.clock.jump(START_S)
        waking.release()
    await asyncio.wait_for(rig.host.machines[made].started.wait(), PATIENCE_S)
    answer = await sending
    parts = answer.aiter_text()

    async def following() -> str:
        return await anext(parts)

    assert await anext(parts) == ": beat\n\n"
    telling = asyncio.create_task(following())
    while not telling.done():
        await rig.clock.jump(0.5)
        assert rig.clock.monotonic() <= after_s + 1
    (told,) = events_of(await telling) or events_of(await anext(parts))
    assert told == ("started", {"process_id": job_id_from("default", made, "k")})
    await answer.aclose()


async def test_who_listens_again_to_a_silent_command_is_told_that_it_is_there(rig: Rig, made: str) -> None:
    begun = await start(rig, made, "k", cmd="hang")

    async def first() -> tuple[str, dict[str, Any]]:
        heard = ""
        async with rig.http.stream("GET", f"/v1/sandboxes/{made}/processes/key:k/stream") as answer:
            async for text in answer.aiter_text():
                heard += text
                if events := events_of(heard):
                    return events[0]
        raise AssertionError("it ended without a word")

    listening = asyncio.create_task(first())
    while not listening.done():
        await rig.clock.jump(0.5)
        assert rig.clock.monotonic() < PATIENCE_S
    assert await listening == ("started", {"process_id": begun["id"]})
