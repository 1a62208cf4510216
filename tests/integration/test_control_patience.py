"""Long answers: the line is kept alive, a status is kept, and a client that hangs up stops nothing half-way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import httpx2
import pytest

from control_rig import KEY, Rig, control_rig
from torpor.control.api.app import create_app
from torpor.errors import FreezeFailed

# The host's verb behind each long answer, its status, and what is asked.
LONG: dict[str, tuple[str, int, dict[str, Any]]] = {
    "hibernate": ("hibernate", 200, {}),
    "wake": ("wake", 200, {}),
    "snapshots": ("snapshot", 201, {}),
    "rollback": ("rollback", 200, {"snapshot": "of it"}),
    "fork": ("restore", 201, {"count": 2}),
}


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


async def ready(rig: Rig, verb: str) -> tuple[str, dict[str, Any]]:
    """Return the URL and the body of a verb on a sandbox that is where it has to be."""
    made = await rig.create()
    body = dict(LONG[verb][2])
    if verb == "rollback":
        body["snapshot"] = (await rig.post(made, "snapshots"))["id"]
    if verb == "wake":
        await rig.post(made, "hibernate")
    return f"/v1/sandboxes/{made}/{verb}", body


@pytest.mark.parametrize("verb", LONG)
async def test_a_long_answer_is_padded_and_keeps_its_status(rig: Rig, verb: str) -> None:
    url, body = await ready(rig, verb)
    hold = rig.host.hold(LONG[verb][0])
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(rig.http.post(url, json=body))
        await hold.reached.wait()
        await rig.clock.jump(29)
        hold.release()
    answer = asked.result()
    assert answer.status_code == LONG[verb][1]
    assert answer.text.startswith("    {")
    assert isinstance(json.loads(answer.text), dict)


async def test_a_long_creation_and_a_long_check_are_padded_too(rig: Rig) -> None:
    snapshot = (await rig.post(await rig.create(), "snapshots"))["id"]
    for verb, url, status in (
        ("restore", "/v1/sandboxes", 201),
        ("verify_snapshot", f"/v1/snapshots/{snapshot}/verify", 200),
    ):
        hold = rig.host.hold(verb)
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(rig.http.post(url, json={}))
            await hold.reached.wait()
            await rig.clock.jump(29)
            hold.release()
        assert (asked.result().status_code, asked.result().text[:5]) == (status, "    {")


async def test_a_short_answer_has_its_length_and_no_padding(rig: Rig) -> None:
    answer = await rig.http.post("/v1/sandboxes", json={})
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.text.startswith("{")


@pytest.mark.parametrize("verb", ["hibernate", "snapshots"])
async def test_an_error_after_padding_breaks_the_answer_off(rig: Rig, verb: str) -> None:
    url, body = await ready(rig, verb)
    hold = rig.host.hold(LONG[verb][0])
    rig.host.fail(LONG[verb][0], FreezeFailed("no answer from the guest"))

    async def asked() -> None:
        with pytest.raises(httpx2.RemoteProtocolError):
            await rig.http.post(url, json=body)

    async with asyncio.TaskGroup() as group:
        group.create_task(asked())
        await hold.reached.wait()
        await rig.clock.jump(12)
        hold.release()
    assert (await rig.http.get(url.rsplit("/", 1)[0])).json()["status"] == "running"


async def served(rig: Rig, url: str, body: dict[str, Any], hang_up: asyncio.Event) -> list[MutableMapping[str, Any]]:
    """Serve one request of a client that hangs up when it is told to, and return what was sent."""
    sent: list[MutableMapping[str, Any]] = []
    asked = iter([{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}])

    async def receive() -> MutableMapping[str, Any]:
        if (message := next(asked, None)) is not None:
            return message
        await hang_up.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if hang_up.is_set():
            raise OSError("the client is gone")
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {KEY}".encode())]
    headers.append((b"content-type", b"application/json"))
    scope = {"type": "http", "method": "POST", "path": url, "raw_path": url.encode(), "query_string": b""}
    more = {"headers": headers, "http_version": "1.1", "scheme": "http", "root_path": "", "server": ("x", 1)}
    await create_app(rig.plane, KEY)(scope | more, receive, send)
    return sent


@pytest.mark.parametrize("after_padding", [False, True])
@pytest.mark.parametrize("verb", LONG)
async def test_a_client_that_hangs_up_does_not_stop_a_passage_half_way(
    rig: Rig, verb: str, after_padding: bool
) -> None:
    url, body = await ready(rig, verb)
    hold, hang_up = rig.host.hold(LONG[verb][0]), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(served(rig, url, body, hang_up))
        await hold.reached.wait()
        if after_padding:
            await rig.clock.jump(12)
        hang_up.set()
        await rig.clock.jump(20)
        assert not serving.done()
        hold.release()
    assert bool(serving.result()) is after_padding
    states = {sandbox.state.value for sandbox in await rig.store.living()}
    assert states == ({"hibernated"} if verb == "hibernate" else {"running"})
    assert not rig.plane.bells.truth.is_set()


async def test_a_command_that_is_hung_up_on_does_not_stop_the_wake_it_asked_for(rig: Rig) -> None:
    url, _ = await ready(rig, "wake")
    hold, hang_up = rig.host.hold("wake"), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(served(rig, url.replace("wake", "exec"), {"cmd": "true"}, hang_up))
        await hold.reached.wait()
        hang_up.set()
        await rig.clock.jump(1)
        hold.release()
    assert {sandbox.state.value for sandbox in await rig.store.living()} == {"running"}
    assert rig.host.calls["exec"] == 0


async def test_a_patient_client_hears_of_an_error_that_comes_late(rig: Rig) -> None:
    url, body = await ready(rig, "hibernate")
    hold = rig.host.hold("hibernate")
    rig.host.fail("hibernate", FreezeFailed("the disk is full of errors"))
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(rig.http.post(url, json=body, headers={"prefer": "respond-async, wait=40"}))
        await hold.reached.wait()
        await rig.clock.jump(35)
        hold.release()
    answer = asked.result()
    assert (answer.status_code, answer.json()["code"]) == (500, "freeze_failed")
