"""The host's side of the wire, over a fake VMM."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from host_rig import BASE, HostRig, new_rig
from torpor.model.ids import new_sandbox_id
from torpor.wire import frames
from torpor.wire.errors import ErrorBody
from torpor.wire.frames import Frame, Kind
from torpor.wire.host import Closed, ExecOutcome, Incarnation, IncarnationList
from torpor.wire.public import DirListing, FileEntry, TemplateList

ROOT = "/host/v1/incarnations"


@pytest.fixture
async def rig(tmp_path: Path) -> HostRig:
    rig = new_rig(tmp_path)
    await rig.bake()
    return rig


@pytest.fixture
async def client(rig: HostRig) -> AsyncIterator[httpx2.AsyncClient]:
    async with rig.client() as client:
        yield client


@pytest.fixture
async def one(client: httpx2.AsyncClient) -> str:
    sandbox = new_sandbox_id()
    answer = await client.post(ROOT, json={"id": sandbox, "template": BASE, "env": {"FROM": "create"}})
    assert answer.status_code == 201, answer.text
    assert Incarnation.model_validate_json(answer.content).alive
    return f"{ROOT}/{sandbox}"


async def execute(client: httpx2.AsyncClient, one: str, *argv: str, **more: object) -> list[Frame]:
    async with client.stream("POST", f"{one}/exec", json={"argv": list(argv), **more}) as answer:
        assert answer.status_code == 200, await answer.aread()
        return [frame async for frame in frames.decode(answer.aiter_raw())]


async def test_incarnations_are_listed_until_they_are_deleted(client: httpx2.AsyncClient, one: str) -> None:
    listed = IncarnationList.model_validate_json((await client.get(ROOT)).content)
    assert [f"{ROOT}/{item.id}" for item in listed.items] == [one]
    for there in (True, False):
        answer = await client.delete(one)
        assert answer.status_code == 200
        assert (Closed.model_validate_json(answer.content).usage is not None) == there
    assert IncarnationList.model_validate_json((await client.get(ROOT)).content).items == []


async def test_a_dead_machine_is_listed_as_such(client: httpx2.AsyncClient, rig: HostRig, one: str) -> None:
    rig.driver.running[0].die("it crashed")
    (item,) = IncarnationList.model_validate_json((await client.get(ROOT)).content).items
    assert not item.alive
    assert item.reason == "it crashed"
    answer = await client.get(f"{one}/fs", params={"path": "/x"})
    assert answer.status_code == 410


async def test_a_command_s_output_and_end_come_as_frames(client: httpx2.AsyncClient, one: str) -> None:
    *output, end = await execute(client, one, "cat", stdin=base64.b64encode(b"a\0\xff").decode())
    assert b"".join(frame.payload for frame in output if frame.kind is Kind.STDOUT) == b"a\0\xff"
    assert end.kind is Kind.EXIT
    assert ExecOutcome.model_validate_json(end.payload).exit_code == 0


async def test_the_sandbox_s_environment_is_below_the_command_s(client: httpx2.AsyncClient, one: str) -> None:
    first, *_ = await execute(client, one, "printenv", "FROM")
    assert first.payload == b"create\n"
    first, *_ = await execute(client, one, "printenv", "FROM", env={"FROM": "exec"})
    assert first.payload == b"exec\n"


async def test_files_go_in_and_come_out_as_they_are(client: httpx2.AsyncClient, one: str) -> None:
    data = bytes(range(256)) * 4096
    path = {"path": "/work/file"}
    answer = await client.put(f"{one}/fs", params={**path, "mode": "640"}, content=data)
    assert answer.json() == {"path": "/work/file", "bytes": len(data)}
    assert (await client.get(f"{one}/fs", params=path)).content == data
    entry = FileEntry.model_validate_json((await client.get(f"{one}/fs/stat", params=path)).content)
    assert (entry.size, entry.mode & 0o777) == (len(data), 0o640)


async def test_folders_are_made_listed_walked_renamed_and_removed(client: httpx2.AsyncClient, one: str) -> None:
    assert (await client.post(f"{one}/fs/dir", params={"path": "/work/a"})).status_code == 204
    await client.put(f"{one}/fs", params={"path": "/work/a/f"}, content=b"x")
    moved = {"source": "/work/a/f", "target": "/work/a/g"}
    assert (await client.post(f"{one}/fs/rename", json=moved)).status_code == 204
    listing = DirListing.model_validate_json((await client.get(f"{one}/fs/dir", params={"path": "/work/a"})).content)
    assert [entry.name for entry in listing.entries] == ["g"]
    walked = await client.get(f"{one}/fs/walk", params={"path": "/work"})
    assert [json.loads(line)["path"] for line in walked.text.splitlines()] == ["/work/a", "/work/a/g"]
    gone = await client.delete(f"{one}/fs", params={"path": "/work/a", "recursive": "true"})
    assert gone.status_code == 204


async def test_a_missing_file_is_404_before_anything_is_sent(client: httpx2.AsyncClient, one: str) -> None:
    answer = await client.get(f"{one}/fs", params={"path": "/absent"})
    assert answer.status_code == 404
    assert ErrorBody.model_validate_json(answer.content).code == "not_found"


async def test_templates_are_listed_and_removed(client: httpx2.AsyncClient) -> None:
    listed = TemplateList.model_validate_json((await client.get("/host/v1/templates")).content)
    assert [item.name for item in listed.items] == [BASE]
    assert (await client.delete("/host/v1/templates/base")).status_code == 204
    assert (await client.delete("/host/v1/templates/base")).status_code == 404


async def test_the_console_is_given_as_text(client: httpx2.AsyncClient, one: str) -> None:
    answer = await client.get(f"{one}/logs")
    assert answer.text == "fake guest\n"
    assert answer.headers["content-type"].startswith("text/plain")


async def test_the_console_of_a_dead_machine_can_still_be_read(
    client: httpx2.AsyncClient, rig: HostRig, one: str
) -> None:
    rig.driver.running[0].die("it crashed")
    answer = await client.get(f"{one}/logs")
    assert (answer.status_code, answer.text) == (200, "fake guest\n")


@pytest.mark.parametrize(
    ("method", "path", "more", "status"),
    [
        ("POST", ROOT, {"content": b"{"}, 400),
        ("POST", ROOT, {"json": {"id": 3, "template": "base"}}, 400),
        ("POST", ROOT, {"json": {"id": "../etc", "template": "base"}}, 404),
        ("POST", ROOT, {"json": {"id": "sbx-0123456789bcdfgh", "template": "../base"}}, 404),
        ("DELETE", f"{ROOT}/..%2fetc", {}, 404),
        ("POST", f"{ROOT}/sbx-0123456789bcdfgh/exec", {"json": {"argv": ["true"]}}, 404),
        ("GET", f"{ROOT}/sbx-0123456789bcdfgh/fs?path=/x", {}, 404),
        ("GET", f"{ROOT}/sbx-0123456789bcdfgh/logs", {}, 404),
    ],
)
async def test_what_makes_no_sense_is_refused_in_one_sentence(
    client: httpx2.AsyncClient, method: str, path: str, more: dict[str, object], status: int
) -> None:
    answer = await client.request(method, path, **more)  # type: ignore[arg-type]
    assert answer.status_code == status
    if answer.headers["content-type"].startswith("application/json"):
        assert ErrorBody.model_validate_json(answer.content).error


@pytest.mark.parametrize("mode", ["abc", "77777", "-1"])
async def test_a_mode_that_is_none_is_refused(client: httpx2.AsyncClient, one: str, mode: str) -> None:
    answer = await client.put(f"{one}/fs", params={"path": "/work/f", "mode": mode}, content=b"x")
    assert answer.status_code == 400
