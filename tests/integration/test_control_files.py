"""A guest's files through the API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from control_rig import NOBODY, Rig, control_rig
from torpor.errors import Forbidden, OutOfSpace


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


@pytest.fixture
async def fs(rig: Rig) -> str:
    return f"/v1/sandboxes/{await rig.create()}/fs"


async def test_bytes_written_are_read_back_exactly(rig: Rig, fs: str) -> None:
    data = bytes(range(256)) * 1000
    written = await rig.http.put(fs, params={"path": "/work/new/a b"}, content=data)
    assert (written.status_code, written.json()) == (200, {"path": "/work/new/a b", "bytes": len(data)})
    read = await rig.http.get(fs, params={"path": "/work/new/a b"})
    assert (read.status_code, read.content) == (200, data)
    assert read.headers["content-type"] == "application/octet-stream"
    assert read.headers["content-length"] == str(len(data))


async def test_a_body_without_a_length_is_written_too(rig: Rig, fs: str) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for part in (b"a", b"", b"b"):
            yield part

    written = await rig.http.put(fs, params={"path": "/work/f"}, content=chunks())
    assert written.json()["bytes"] == 2


@pytest.mark.parametrize(("mode", "bits"), [("640", 0o640), ("0640", 0o640), ("4755", 0o4755), ("7", 7)])
async def test_mode_is_octal(rig: Rig, fs: str, mode: str, bits: int) -> None:
    await rig.http.put(fs, params={"path": "/work/f", "mode": mode, "user": "nobody"}, content=b"x")
    entry = (await rig.http.get(f"{fs}/stat", params={"path": "/work/f"})).json()
    assert (entry["mode"], entry["user"], entry["size"], entry["is_dir"]) == (bits, "nobody", 1, False)


async def test_append_extends(rig: Rig, fs: str) -> None:
    await rig.http.put(fs, params={"path": "/work/f"}, content=b"one")
    await rig.http.put(fs, params={"path": "/work/f", "append": "true"}, content=b"two")
    assert (await rig.http.get(fs, params={"path": "/work/f"})).content == b"onetwo"


async def test_a_body_that_breaks_off_leaves_the_old_file(rig: Rig, fs: str) -> None:
    await rig.http.put(fs, params={"path": "/work/f"}, content=b"old")

    async def broken() -> AsyncIterator[bytes]:
        yield b"new"
        raise OSError("the client is gone")

    with pytest.raises(OSError, match="gone"):
        await rig.http.put(fs, params={"path": "/work/f"}, content=broken())
    assert (await rig.http.get(fs, params={"path": "/work/f"})).content == b"old"


async def test_folders_are_made_listed_walked_moved_and_removed(rig: Rig, fs: str) -> None:
    assert (await rig.http.post(f"{fs}/dir", params={"path": "/work/a/b", "mode": "750"})).status_code == 204
    assert (await rig.http.post(f"{fs}/dir", params={"path": "/work/a/b"})).status_code == 204
    await rig.http.put(fs, params={"path": "/work/a/f"}, content=b"x")
    entries = (await rig.http.get(f"{fs}/dir", params={"path": "/work/a"})).json()["entries"]
    assert [(entry["name"], entry["is_dir"]) for entry in entries] == [("b", True), ("f", False)]
    walk = await rig.http.get(f"{fs}/walk", params={"path": "/work"})
    assert walk.headers["content-type"] == "application/x-ndjson"
    paths = [json.loads(line)["path"] for line in walk.text.splitlines()]
    assert paths == ["/work/a", "/work/a/b", "/work/a/f"]
    moved = await rig.http.post(f"{fs}/rename", json={"source": "/work/a", "target": "/work/c"})
    assert moved.status_code == 204
    full = await rig.http.delete(fs, params={"path": "/work/c"})
    assert full.status_code == 409
    assert (await rig.http.delete(fs, params={"path": "/work/c", "recursive": "true"})).status_code == 204
    assert (await rig.http.get(f"{fs}/stat", params={"path": "/work/c/f"})).status_code == 404


CALLS = [
    ("GET", ""),
    ("PUT", ""),
    ("DELETE", ""),
    ("GET", "/stat"),
    ("GET", "/dir"),
    ("POST", "/dir"),
    ("GET", "/walk"),
]


@pytest.mark.parametrize(("method", "rest"), CALLS)
@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "path is required"),
        ("path=", "path is empty"),
        ("path=work/f", "path has to be absolute"),
        ("path=../etc", "path has to be absolute"),
        ("path=/a%00b", "path has a NUL"),
        (f"path=/{'x' * 5000}", "path is longer"),
    ],
)
async def test_a_bad_path_is_refused_before_it_reaches_the_host(
    rig: Rig, fs: str, method: str, rest: str, query: str, said: str
) -> None:
    before = rig.host.calls.total()
    answer = await rig.http.request(method, f"{fs}{rest}?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert said in answer.json()["error"]
    assert rig.host.calls.total() == before


@pytest.mark.parametrize(
    ("method", "rest"), [("GET", ""), ("DELETE", ""), ("GET", "/stat"), ("GET", "/dir"), ("GET", "/walk")]
)
async def test_a_missing_file_is_not_found_and_the_sandbox_runs_on(rig: Rig, fs: str, method: str, rest: str) -> None:
    answer = await rig.http.request(method, f"{fs}{rest}", params={"path": "/work/none"})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert await rig.status(fs.split("/")[3]) == "running"


@pytest.mark.parametrize(
    ("method", "rest", "path"),
    [("GET", "", "/work"), ("PUT", "", "/work"), ("GET", "/dir", "/work/f"), ("GET", "/walk", "/work/f")],
)
async def test_a_folder_where_a_file_is_due_and_the_reverse_is_refused(
    rig: Rig, fs: str, method: str, rest: str, path: str
) -> None:
    await rig.http.put(fs, params={"path": "/work/f"}, content=b"x")
    answer = await rig.http.request(method, f"{fs}{rest}", params={"path": path})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("query", "said"),
    [({"mode": "rw"}, "mode"), ({"mode": "999"}, "mode"), ({"append": "maybe"}, "append"), ({"user": ""}, "user")],
)
async def test_a_bad_option_of_a_write_is_refused(rig: Rig, fs: str, query: dict[str, str], said: str) -> None:
    answer = await rig.http.put(fs, params={"path": "/work/f"} | query, content=b"x")
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert (await rig.http.get(fs, params={"path": "/work/f"})).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"source": "/a"},
        {"source": "a", "target": "/b"},
        {"source": "/a", "target": ""},
        {"source": 1, "target": "/b"},
    ],
)
async def test_a_bad_rename_is_refused(rig: Rig, fs: str, body: dict[str, Any]) -> None:
    assert (await rig.http.post(f"{fs}/rename", json=body)).status_code == 400


@pytest.mark.parametrize(("error", "status"), [(OutOfSpace("disk full"), 507), (Forbidden("not yours"), 403)])
async def test_what_the_guest_refuses_is_passed_on(rig: Rig, fs: str, error: Any, status: int) -> None:
    rig.host.fail("write", error)
    answer = await rig.http.put(fs, params={"path": "/work/f"}, content=b"x")
    assert (answer.status_code, answer.json()["error"]) == (status, error.message)


@pytest.mark.parametrize(("method", "rest"), CALLS)
@pytest.mark.parametrize("vanished", [False, True])
async def test_a_dead_machine_is_lost_for_files_too(rig: Rig, fs: str, method: str, rest: str, vanished: bool) -> None:
    made = fs.split("/")[3]
    rig.host.vanish(made) if vanished else rig.host.die(made)
    answer = await rig.http.request(method, f"{fs}{rest}", params={"path": "/work"})
    assert (answer.status_code, answer.json()["code"]) == (410, "sandbox_lost")
    assert await rig.status(made) == "failed"


@pytest.mark.parametrize(("method", "rest"), CALLS)
async def test_files_of_nobody_are_not_found(rig: Rig, method: str, rest: str) -> None:
    answer = await rig.http.request(method, f"/v1/sandboxes/{NOBODY}/fs{rest}", params={"path": "/work"})
    assert answer.status_code == 404


async def test_a_download_that_breaks_off_is_broken_off(rig: Rig, fs: str) -> None:
    with pytest.raises(httpx2.RemoteProtocolError):
        await rig.http.get(fs, params={"path": "/broken/100000"})
    assert (await rig.http.get(fs, params={"path": "/zeros/100000"})).content == bytes(100_000)


async def test_the_console_is_text(rig: Rig) -> None:
    made = await rig.create()
    logs = await rig.http.get(f"/v1/sandboxes/{made}/logs")
    assert (logs.status_code, logs.text) == (200, f"{made} login:\n")
    assert logs.headers["content-type"].startswith("text/plain")
    for stream in ("both", "stdout", "stderr"):
        assert (await rig.http.get(f"/v1/sandboxes/{made}/logs?stream={stream}&follow=false")).text == logs.text
    assert (await rig.http.get(f"/v1/sandboxes/{made}/logs?stream=x")).status_code == 400


async def test_the_console_of_a_failed_sandbox_can_be_read_while_its_host_has_it(rig: Rig) -> None:
    made = await rig.create()
    rig.host.die(made, "killed by signal 9")
    assert (await rig.http.get(f"/v1/sandboxes/{made}/fs/stat?path=/")).status_code == 410
    assert (await rig.http.get(f"/v1/sandboxes/{made}/logs")).text == f"{made} login:\n"
    rig.host.vanish(made)
    gone = await rig.http.get(f"/v1/sandboxes/{made}/logs")
    assert (gone.status_code, gone.json()["code"]) == (410, "sandbox_lost")
