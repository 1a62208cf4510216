"""What stands before every route: the key, the request id, bounds, and errors in one form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from starlette.types import Message, Receive, Scope, Send
from structlog.testing import capture_logs

from control_rig import KEY, Rig, control_rig
from torpor.control.access import AccessConfig
from torpor.control.api.door import MAX_BODY_BYTES, Door
from torpor.model.ids import SandboxId
from torpor.model.sandbox import Sandbox
from torpor.testing.store import MemoryStore


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


@pytest.mark.parametrize("path", ["/healthz", "/version", "/openapi.json"])
async def test_health_version_and_description_are_open(rig: Rig, path: str) -> None:
    answer = await rig.http.get(path, headers={"authorization": ""})
    assert answer.status_code == 200
    assert answer.json()


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", f"Basic {KEY}", KEY, f"Bearer {KEY}x", f"Bearer {KEY[:-1]}"],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/me"), ("POST", "/v1/sandboxes"), ("GET", "/v1/nothing"), ("GET", "/v1/templates")],
)
async def test_without_the_key_nothing_is_done_and_it_is_said_where_the_key_is(
    rig: Rig, authorization: str | None, method: str, path: str
) -> None:
    request = rig.http.build_request(method, path, content=b"{not json" if method == "POST" else None)
    del request.headers["authorization"]
    if authorization is not None:
        request.headers["authorization"] = authorization
    answer = await rig.http.send(request)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert "`key` in the server's home" in answer.json()["error"]
    assert answer.headers["www-authenticate"] == "Bearer"
    assert not rig.host.calls


@pytest.mark.parametrize("given", ["abc-1.2_X", "x" * 64])
async def test_a_request_id_is_echoed(rig: Rig, given: str) -> None:
    for path in ("/v1/me", "/v1/nothing"):
        answer = await rig.http.get(path, headers={"x-request-id": given})
        assert answer.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "ü", "a;b", "<script>"])
async def test_a_request_id_that_is_none_is_replaced(rig: Rig, given: str) -> None:
    answer = await rig.http.get("/v1/nothing", headers={b"x-request-id": given.encode()})
    assert answer.headers["x-request-id"].startswith("req-")
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/", 404),
        ("GET", "/v1/sandboxes/a/b/c", 404),
        ("PUT", "/v1/sandboxes", 405),
        ("POST", "/v1/me", 405),
        ("DELETE", "/healthz", 405),
    ],
)
async def test_a_wrong_place_or_method_has_the_same_form_of_body(rig: Rig, method: str, path: str, status: int) -> None:
    answer = await rig.http.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()) == {"error", "code", "retryable", "hint", "request_id", "details"}
    assert path in answer.json()["error"]


@pytest.mark.parametrize(
    "body",
    [b"{", b'{"a": }', b"\xff\xfe", b'{"template": "a" "b"}', b"[" * 100_000, b'{"ttl_seconds": ' + b"9" * 5000 + b"}"],
    ids=["open", "no value", "no utf-8", "no comma", "deep", "huge number"],
)
async def test_malformed_json_is_one_sentence(rig: Rig, body: bytes) -> None:
    answer = await rig.http.post("/v1/sandboxes", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert "JSON" in answer.json()["error"]
    assert not rig.host.machines


async def test_a_lone_surrogate_is_no_text(rig: Rig) -> None:
    body = b'{"metadata": {"a": "\\ud800"}, "template": "base"}'
    answer = await rig.http.post("/v1/sandboxes", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("said", [True, False])
async def test_a_body_that_is_too_large_is_refused_unread(rig: Rig, said: bool) -> None:
    taken = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(1000):
            taken += 1024 * 1024
            yield b" " * 1024 * 1024

    headers = {"content-type": "application/json"} | ({"content-length": str(1000 * 1024 * 1024)} if said else {})
    answer = await rig.http.post("/v1/sandboxes", content=chunks(), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert str(MAX_BODY_BYTES) in answer.json()["error"]
    assert taken <= (0 if said else MAX_BODY_BYTES + 2 * 1024 * 1024)


class Broken(MemoryStore):
    async def get(self, sandbox_id: SandboxId) -> Sandbox | None:
        raise ZeroDivisionError("a secret of the inside")


async def test_a_bug_is_an_unknown_outcome_without_a_word_of_the_inside() -> None:
    with capture_logs() as logged:
        async with control_rig(Broken()) as rig:
            answer = await rig.http.get("/v1/sandboxes/sbx-0000000000000000")
    assert (answer.status_code, answer.json()["code"]) == (500, "outcome_unknown")
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    (entry,) = [entry for entry in logged if entry["event"] == "unexpected"]
    assert (entry["exc_info"], entry["request_id"]) == (True, answer.headers["x-request-id"])
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


async def test_templates_are_listed_shown_and_removed(rig: Rig) -> None:
    listed = (await rig.http.get("/v1/templates")).json()["items"]
    assert [item["name"] for item in listed] == ["agent", "base"]
    shown = (await rig.http.get("/v1/templates/agent")).json()
    assert (shown["name"], shown["memory_mb"]) == ("agent", 512)
    assert (await rig.http.delete("/v1/templates/agent")).status_code == 204
    for method in ("GET", "DELETE"):
        assert (await rig.http.request(method, "/v1/templates/agent")).status_code == 404


@pytest.mark.parametrize("name", ["..", "A", "a%2Fb", "x" * 63, "%00"])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_template_of_no_name_is_not_found(rig: Rig, method: str, name: str) -> None:
    answer: httpx2.Response = await rig.http.request(method, f"/v1/templates/{name}")
    assert answer.status_code in (404, 405)
    assert isinstance(answer.json()["error"], str)


async def test_the_description_names_errors_raw_bodies_and_streams(rig: Rig) -> None:
    described: dict[str, Any] = (await rig.http.get("/openapi.json")).json()
    paths = described["paths"]
    fs = paths["/v1/sandboxes/{id}/fs"]
    assert "application/octet-stream" in fs["put"]["requestBody"]["content"]
    assert "application/octet-stream" in fs["get"]["responses"]["200"]["content"]
    stream = paths["/v1/sandboxes/{id}/exec/stream"]["post"]["responses"]["200"]["content"]
    assert "text/event-stream" in stream
    for path, operations in paths.items():
        for operation in operations.values():
            assert "422" not in operation["responses"]
            if path.startswith("/v1/"):
                assert operation["security"] == [{"HTTPBearer": []}]
                schema = operation["responses"]["400"]["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorBody"}


async def test_a_request_that_the_stop_of_the_server_cuts_off_is_answered_in_form() -> None:
    sent: list[Message] = []
    begun = asyncio.Event()

    async def hang(_scope: Scope, _receive: Receive, _send: Send) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    async with control_rig() as rig:
        door = Door(hang, rig.plane, KEY, AccessConfig())
    scope = {"type": "http", "method": "GET", "path": "/healthz", "headers": [(b"host", b"localhost")]}
    request = asyncio.create_task(door(scope, receive, send))
    await begun.wait()
    request.cancel()
    await request
    assert sent[0]["status"] == 500
    assert json.loads(sent[1]["body"])["code"] == "outcome_unknown"
