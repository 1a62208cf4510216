"""Terminals and commands on WebSockets, through a real server of ours on a socket; the host is a fake one."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from control_rig import KEY
from ports_rig import PATIENCE_S, PortsRig, ports_rig
from torpor.control.api.dialects import MAX_FRAME_BYTES
from torpor.control.api.terminals import GRACE_S, MOST_OPEN
from torpor.control.idleness import sweep
from torpor.model.ids import SandboxId
from torpor.wire.host import JobOrder


@pytest.fixture
async def ports() -> AsyncIterator[PortsRig]:
    async with ports_rig() as rig:
        yield rig


@pytest.fixture
async def sandbox(ports: PortsRig) -> str:
    return await ports.rig.create()


def opened(ports: PortsRig, sandbox: str, path: str, key: str = KEY, **headers: str) -> connect:
    url = f"ws://127.0.0.1:{ports.port}/v1/sandboxes/{sandbox}/{path}"
    return connect(
        url, additional_headers={"authorization": f"Bearer {key}", **headers}, proxy=None, open_timeout=PATIENCE_S
    )


async def screen(line: ClientConnection, wanted: bytes) -> bytes:
    """Return what was shown up to the end of a text; what else is said is passed over."""
    shown = b""
    async with asyncio.timeout(PATIENCE_S):
        while wanted not in shown:
            message = await line.recv()
            shown += message if isinstance(message, bytes) else b""
    return shown


async def rest(line: ClientConnection) -> tuple[list[Any], int, str]:
    """Return all that is still said, objects for texts, and how the WebSocket was closed."""
    said: list[Any] = []
    async with asyncio.timeout(PATIENCE_S):
        try:
            while True:
                message = await line.recv()
                said.append(json.loads(message) if isinstance(message, str) else message)
        except ConnectionClosed:
            return said, line.close_code or 0, line.close_reason or ""


async def told(line: ClientConnection) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return json.loads(await line.recv())


async def test_a_terminal_follows_its_clients_size_keys_and_end(ports: PortsRig, sandbox: str) -> None:
    async with opened(ports, sandbox, "pty?rows=30&cols=100") as line:
        began = await told(line)
        assert began["started"]["process_id"].startswith("job-")
        await screen(line, b"$ ")
        await line.send(b"stty size\r")
        await screen(line, b"30 100\r\n")
        await line.send(json.dumps({"resize": {"rows": 43, "cols": 132}}))
        await line.send("stty size\r")
        await screen(line, b"43 132\r\n")
        await line.send(b"hang\r")
        await screen(line, b"hang\r\n")
        await line.send(b"\x03")
        await screen(line, b"^C\r\n$ ")
        await line.send(b"echo $?\r")
        await screen(line, b"130\r\n")
        await line.send(b"exit 7\r")
        said, code, _ = await rest(line)
    assert next(one for one in said if not isinstance(one, bytes))["exit"] == 7
    assert code == 1000


async def test_one_who_knows_of_no_more_is_told_no_more(ports: PortsRig, sandbox: str) -> None:
    async with opened(ports, sandbox, "ssh?rows=24&cols=80") as line:
        assert line.response is not None
        assert line.response.headers["x-process-id"].startswith("job-")
        assert await line.recv() == b"$ "
        await line.send('{"resize":{"rows":10,"cols":20}}')
        await line.send(b"stty size\r")
        await screen(line, b"10 20\r\n")
        await line.send('{"type":"stdin","data":"x"}\r')  # just typed
        await screen(line, b'{"type":"stdin","data":"x"}\r\n')
        await line.send("exit 3\r")
        assert [one for one in (await rest(line))[0] if not isinstance(one, bytes)] == [{"exit": 3}]


@pytest.mark.parametrize("query", ["&frames=json", ""])
async def test_the_other_dialect_says_everything_in_objects(ports: PortsRig, sandbox: str, query: str) -> None:
    async with opened(ports, sandbox, f"pty?cmd=cat-nothing%3B%20hang{query}") as line:
        await line.send('{"type": "ping"}')
        while not isinstance(message := await line.recv(), str) or json.loads(message).get("type") != "pong":
            pass
        await line.send('{"type": "resize", "rows": 5, "cols": 6}')
        await line.send('{"type": "signal", "signal": "SIGTERM"}')
        said, code, _ = await rest(line)
    assert said[-1]["type"] == "exit"
    assert (said[-1]["exit_code"], said[-1]["signal"], code) == (143, "SIGTERM", 1000)


async def test_text_is_never_cut_in_a_character_and_base64_is_exact(ports: PortsRig, sandbox: str) -> None:
    cmd = "raw c3; raw a9; raw f09f; raw 9880; raw ff"
    async with opened(ports, sandbox, f"pty?frames=json&cmd={cmd.replace(' ', '%20').replace(';', '%3B')}") as line:
        said, _, _ = await rest(line)
    chunks = [one for one in said if one["type"] == "stdout"]
    assert "".join(one["data"] for one in chunks) == "é😀\ufffd"
    assert chunks[-1]["to"] == 7
    async with opened(ports, sandbox, "exec/ws?encoding=base64") as line:
        await line.send(json.dumps({"cmd": cmd}))
        said, _, _ = await rest(line)
    assert (
        b"".join(base64.b64decode(one["data"]) for one in said if one["type"] == "stdout") == "é😀".encode() + b"\xff"
    )


async def test_one_who_comes_back_goes_on_from_where_he_was(ports: PortsRig, sandbox: str) -> None:
    async with opened(ports, sandbox, "pty") as line:
        process = (await told(line))["started"]["process_id"]
        seen = len(await screen(line, b"$ "))
    order = ports.rig.host.machines[sandbox].jobs[process].order
    assert isinstance(order, JobOrder)
    assert order.hangup_s == GRACE_S
    async with opened(ports, sandbox, f"pty?process={process}&from={seen}") as line:
        assert await told(line) == {"started": {"process_id": process, "from": seen}}
        await line.send(b"echo again\r")
        assert (await screen(line, b"again\r\n")).startswith(b"e")
    async with opened(ports, sandbox, f"pty?process={process}") as line:
        assert (await screen(line, b"again\r\n")).startswith(b"$ ")
        async with opened(ports, sandbox, f"pty?process={process}") as other:
            await other.send(b"exit 4\r")
            assert (await rest(line))[0][-1]["exit"] == (await rest(other))[0][-1]["exit"] == 4


async def test_a_command_reads_what_is_sent_until_its_end(ports: PortsRig, sandbox: str) -> None:
    async with opened(ports, sandbox, "exec/ws") as line:
        await line.send(json.dumps({"cmd": ["cat"]}))
        assert (await told(line))["type"] == "started"
        await line.send('{"type": "stdin", "data": "hällo "}')
        await line.send(b"and ")
        await line.send('{"type": "stdin", "data": "Ynll", "encoding": "base64"}')
        await line.send('{"type": "eof"}')
        said, code, _ = await rest(line)
        assert "".join(one["data"] for one in said if one["type"] == "stdout") == "hällo and bye"
        assert (said[-1]["type"], said[-1]["exit_code"], code) == ("exit", 0, 1000)
    async with opened(ports, sandbox, "exec/ws?frames=binary") as line:
        await line.send(json.dumps({"cmd": "echo out; echo err >&2; exit 9"}))
        said, _, _ = await rest(line)
    assert b"".join(one for one in said if isinstance(one, bytes)) == b"out\n"
    assert {"stderr": "err\n"} in said
    assert said[-1]["exit"] == 9


async def test_a_command_whose_client_is_gone_is_killed_unless_it_came_with_a_key(
    ports: PortsRig, sandbox: str
) -> None:
    jobs = ports.rig.host.machines[sandbox].jobs
    for headers, state in (({}, "ended"), ({"idempotency-key": "k-1"}, "running")):
        async with opened(ports, sandbox, "exec/ws", **headers) as line:
            await line.send(json.dumps({"cmd": "hang"}))
            process = (await told(line))["process_id"]
        url = f"/v1/sandboxes/{sandbox}/processes/{process}"
        async with asyncio.timeout(PATIENCE_S):
            while (await ports.rig.http.get(url)).json()["state"] != state:
                pass
        order = jobs[process].order
        assert isinstance(order, JobOrder)
        assert (order.hangup_s is None) == bool(headers)


async def test_what_is_typed_first_may_be_any_json(ports: PortsRig, sandbox: str) -> None:
    async with opened(ports, sandbox, "pty") as line:
        await screen(line, b"$ ")
        await line.send('{"type": ["stdin"]}\r')
        await screen(line, b'{"type": ["stdin"]}\r\n')


async def test_one_who_has_heard_of_a_command_goes_on_with_it_and_starts_no_other(
    ports: PortsRig, sandbox: str
) -> None:
    async def heard(stdout_from: int, **headers: str) -> tuple[list[Any], int, str]:
        async with opened(ports, sandbox, "exec/ws", **headers) as line:
            await line.send(json.dumps({"cmd": "echo hello", "stdout_from": stdout_from}))
            return await rest(line)

    key = {"idempotency-key": "k-1"}
    said, code, _ = await heard(2, **key)
    assert (said[0]["code"], code, ports.rig.host.machines[sandbox].jobs) == ("not_found", 1008, {})
    await heard(0, **key)
    said, code, _ = await heard(2, **key)
    assert ("".join(one["data"] for one in said if one["type"] == "stdout"), code) == ("llo\n", 1000)
    said, code, reason = await heard(7, **key)
    assert (said[0]["code"], code, "from 0 to 6" in reason) == ("invalid_request", 1008, True)
    said, _, _ = await heard(2)  # without a key it is another command, which is new
    assert "".join(one["data"] for one in said if one["type"] == "stdout") == "hello\n"


async def test_a_sandbox_that_sleeps_is_woken_and_one_with_an_open_terminal_is_in_use(
    ports: PortsRig, sandbox: str
) -> None:
    await ports.rig.post(sandbox, "hibernate")
    async with opened(ports, sandbox, "pty") as line:
        await screen(line, b"$ ")
        assert ports.rig.plane.activity.in_flight(SandboxId(sandbox)) > 0
        await ports.rig.post(sandbox, "hibernate")
        await line.send(b"stty size\r")  # which wakes it, once it is seen that nobody takes the keys
        await screen(line, b"24 80\r\n")
    assert ports.rig.host.calls["wake"] == 2


@pytest.mark.parametrize(
    ("path", "status", "what"),
    [
        ("pty?rows=x", 400, "rows has to be a whole number"),
        ("pty?rows=0", 400, "terminal.rows"),
        ("pty?cols=70000", 400, "terminal.cols"),
        ("pty?frames=morse", 400, "frames has to be one of binary, json"),
        ("ssh?encoding=x", 400, "encoding has to be one of"),
        ("pty?process=job-none", 404, "there is no process"),
        ("pty?cwd=relative", 400, "cwd"),
    ],
)
async def test_what_makes_no_sense_is_refused_before_the_upgrade(
    ports: PortsRig, sandbox: str, path: str, status: int, what: str
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await opened(ports, sandbox, path)
    assert refused.value.response.status_code == status
    assert what in json.loads(refused.value.response.body or b"")["error"]


@pytest.mark.parametrize("path", ["pty", "ssh", "exec/ws"])
async def test_a_strangers_sandbox_is_not_there_and_a_foreign_page_gets_nothing(ports: PortsRig, path: str) -> None:
    sandbox = await ports.rig.create()
    stranger = await ports.rig.http.post("/v1/me/tokens", json={"name": "s", "workspace": "else", "role": "member"})
    for key, headers, status in (
        (stranger.json()["token"], {}, 404),
        ("tpr_wrong", {}, 401),
        (KEY, {"origin": "https://evil.example"}, 403),
    ):
        with pytest.raises(InvalidStatus) as refused:
            await opened(ports, sandbox, path, key, **headers)
        assert refused.value.response.status_code == status
    with pytest.raises(InvalidStatus) as unknown:
        await opened(ports, "sbx-0000000000000000", path)
    assert unknown.value.response.status_code == 404


@pytest.mark.parametrize(
    ("frames", "sent", "code", "why"),
    [
        ("json", "no json", 1003, "JSON object"),
        ("json", "[1]", 1003, "JSON object"),
        ("json", "[" * 100_000, 1003, "JSON object"),
        ("json", '{"type": "fly"}', 1008, "type has to be one of"),
        ("json", '{"type": ["stdin"]}', 1008, "type has to be one of"),
        ("json", '{"type": "stdin"}', 1008, "data"),
        ("json", '{"type": "stdin", "data": "!", "encoding": "base64"}', 1008, "base64"),
        ("json", '{"type": "stdin", "data": "\\ud800"}', 1008, "surrogate"),
        ("json", '{"type": "resize", "rows": 0, "cols": 1}', 1008, "rows"),
        ("json", '{"type": "resize", "rows": 1}', 1008, "rows"),
        ("json", '{"type": "signal", "signal": 9}', 1008, "signal"),
        ("json", '{"type": "signal", "signal": "SIGNONE"}', 1008, "SIGNONE"),
        ("binary", '{"resize": [1, 2]}', 1008, "rows"),
        ("binary", b"x" * (MAX_FRAME_BYTES + 1), 1009, "at most"),
        ("json", "x" * (MAX_FRAME_BYTES + 1), 1009, "at most"),
    ],
)
async def test_frames_that_make_no_sense_close_the_terminal_and_leave_nothing(
    ports: PortsRig, sandbox: str, frames: str, sent: str | bytes, code: int, why: str
) -> None:
    async with opened(ports, sandbox, f"pty?frames={frames}") as line:
        await line.send(sent)
        _, closed, reason = await rest(line)
    assert (closed, why in reason) == (code, True), reason
    async with asyncio.timeout(PATIENCE_S):
        while ports.rig.plane.activity.in_flight(SandboxId(sandbox)):
            await ports.rig.http.get("/v1/me")


@pytest.mark.parametrize(
    ("first", "code", "why"),
    [
        (b"{}", 1008, "first frame has to be text"),
        ("{", 1003, "not JSON"),
        ("[]", 1008, "JSON object"),
        ("{}", 1008, "cmd is required"),
        ('{"cmd": 3}', 1008, "cmd has to be"),
        ('{"cmd": ""}', 1008, "cmd is empty"),
        ('{"cmd": "true", "timeout_seconds": -1}', 1008, "timeout_seconds"),
        ("x" * (MAX_FRAME_BYTES + 1), 1009, "at most"),
    ],
)
async def test_an_order_that_makes_no_sense_starts_nothing(
    ports: PortsRig, sandbox: str, first: str | bytes, code: int, why: str
) -> None:
    async with opened(ports, sandbox, "exec/ws") as line:
        await line.send(first)
        _, closed, reason = await rest(line)
    assert (closed, why in reason) == (code, True), reason
    assert ports.rig.host.machines[sandbox].jobs == {}


async def test_input_after_its_end_is_out_of_order(ports: PortsRig, sandbox: str) -> None:
    async with opened(ports, sandbox, "exec/ws") as line:
        await line.send(json.dumps({"cmd": "hang"}))
        for frame in ('{"type": "eof"}', '{"type": "stdin", "data": "late"}'):
            await line.send(frame)
        _, code, reason = await rest(line)
    assert (code, reason) == (1008, "the input was ended before")


async def test_a_timeout_is_told(ports: PortsRig, sandbox: str) -> None:
    async with opened(ports, sandbox, "exec/ws") as line:
        await line.send(json.dumps({"cmd": "hang", "timeout_seconds": 5}))
        assert (await told(line))["type"] == "started"
        await ports.rig.clock.jump(6)
        said, code, _ = await rest(line)
    assert [one["type"] for one in said] == ["error", "exit"]
    assert (said[0]["error"], code) == ("command timeout after 5 s", 1000)


async def test_only_so_many_are_open_to_a_sandbox(ports: PortsRig, sandbox: str) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(MOST_OPEN):
            await stack.enter_async_context(opened(ports, sandbox, "pty"))
        with pytest.raises(InvalidStatus) as refused:
            await opened(ports, sandbox, "pty")
        assert refused.value.response.status_code == 503
    async with opened(ports, sandbox, "pty") as line:
        await screen(line, b"$ ")


async def test_a_terminal_ends_with_the_key_that_opened_it(ports: PortsRig) -> None:
    made = (await ports.rig.http.post("/v1/me/tokens", json={"name": "k"})).json()
    sandbox = await ports.rig.create()
    async with opened(ports, sandbox, "pty", made["token"]) as line:
        await screen(line, b"$ ")
        assert (await ports.rig.http.delete(f"/v1/me/tokens/{made['prefix']}")).status_code == 204
        _, code, reason = await rest(line)
    assert (code, reason) == (1008, "the key is not valid any more")


async def test_a_machine_that_dies_is_told(ports: PortsRig, sandbox: str) -> None:
    async with opened(ports, sandbox, "pty?frames=json") as line:
        await told(line)
        ports.rig.host.die(sandbox, "the machine was killed")
        said, code, _ = await rest(line)
    assert (said[-1]["type"], said[-1]["code"], code) == ("error", "sandbox_lost", 1011)


async def test_processes_take_a_terminal_and_are_resized(ports: PortsRig, sandbox: str) -> None:
    http, url = ports.rig.http, f"/v1/sandboxes/{sandbox}/processes"
    began = await http.post(url, json={"terminal": {"rows": 10, "cols": 40}})
    assert began.status_code == 201, began.text
    assert (began.json()["terminal"], began.json()["command"]) == ({"rows": 10, "cols": 40}, "(login shell)")
    one = f"{url}/{began.json()['id']}"
    assert (await http.post(f"{one}/resize", json={"rows": 11, "cols": 41})).status_code == 204
    assert (await http.get(one)).json()["terminal"] == {"rows": 11, "cols": 41}
    assert (await http.post(f"{one}/stdin", content=b"exit 2\r")).status_code == 200
    refused: list[tuple[dict[str, Any], int]] = [({"rows": 0}, 400), ({"rows": "x"}, 400), ({}, 409)]
    for body, status in refused:
        async with asyncio.timeout(PATIENCE_S):
            while (await http.get(one)).json()["state"] != "ended":
                pass
        assert (await http.post(f"{one}/resize", json=body)).status_code == status
    plain = (await http.post(url, json={"cmd": "hang"})).json()["id"]
    assert (await http.post(f"{url}/{plain}/resize", json={})).status_code == 400
    for wrong in ({}, {"cmd": ""}, {"terminal": {"rows": 0}}, {"terminal": {}, "stdin": "x"}):
        assert (await http.post(url, json=wrong)).status_code == 400


async def test_a_terminal_that_nobody_looks_at_does_not_keep_its_sandbox_awake(ports: PortsRig) -> None:
    sandbox = await ports.rig.create(idle_timeout_seconds=1)
    async with opened(ports, sandbox, "pty") as line:
        await screen(line, b"$ ")
    async with ports.rig.working(sweep(ports.rig.plane)):
        await ports.rig.clock.jump(2)
        await ports.rig.wait_status(sandbox, "hibernated")
