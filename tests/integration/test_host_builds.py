"""Builds on the host's side of the wire, over a fake VMM: what is sent, who has to wait, and what is left."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx2
import pytest

from host_rig import BASE, HostRig, new_rig
from torpor.host import builds_api
from torpor.host.bake import the_only_bake
from torpor.host.builds_api import sweep_builds
from torpor.model.ids import new_build_id, new_sandbox_id, new_snapshot_id
from torpor.storage import room
from torpor.wire.builds import News
from torpor.wire.errors import ErrorBody
from torpor.wire.public import TemplateView

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root builds templates")
ROOT = "/host/v1"


@pytest.fixture
async def rig(tmp_path: Path) -> HostRig:
    rig = new_rig(tmp_path)
    await rig.bake()
    return rig


@pytest.fixture
async def client(rig: HostRig) -> AsyncIterator[httpx2.AsyncClient]:
    async with rig.client() as client:
        yield client


def url(build: str | None = None) -> str:
    return f"{ROOT}/builds/{build or new_build_id()}"


async def put(
    client: httpx2.AsyncClient, one: str, path: str, content: bytes = b"x", **headers: str
) -> httpx2.Response:
    return await client.put(f"{one}/files", params={"path": path}, content=content, headers=headers)


def error_of(answer: httpx2.Response) -> str:
    return ErrorBody.model_validate_json(answer.content).error


async def built(client: httpx2.AsyncClient, one: str, source: Mapping[str, object], **more: object) -> list[News]:
    answer = await client.post(one, json={"template": "made", "source": source, **more})
    assert answer.status_code == 200, answer.text
    return [News.model_validate_json(line) for line in answer.text.splitlines()]


async def snapshot_of(client: httpx2.AsyncClient, **order: object) -> tuple[str, str]:
    sandbox, snapshot = new_sandbox_id(), new_snapshot_id()
    made = await client.post(f"{ROOT}/incarnations", json={"id": sandbox, "template": BASE, **order})
    assert made.status_code == 201, made.text
    taken = await client.post(f"{ROOT}/incarnations/{sandbox}/snapshots", json={"id": snapshot, "kind": "checkpoint"})
    assert taken.status_code == 201, taken.text
    return sandbox, snapshot


async def test_what_is_sent_is_kept_whole_with_its_mode(client: httpx2.AsyncClient, rig: HostRig) -> None:
    build = new_build_id()
    answer = await put(client, url(build), "context/a/run.sh", b"#!/bin/sh\n", **{"x-file-mode": "755"})
    assert answer.json() == {"bytes": 10}
    await put(client, url(build), "context/a/run.sh", b"again", **{"x-file-mode": "755"})
    kept = rig.layout.builds / build / "context/a/run.sh"
    assert (kept.read_bytes(), kept.stat().st_mode & 0o777) == (b"again", 0o755)
    assert [entry.name for entry in rig.layout.builds.iterdir()] == [build]
    assert (await client.delete(url(build))).status_code == 204
    assert (await client.delete(url(build))).status_code == 204
    assert list(rig.layout.builds.iterdir()) == []


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../x",
        "context/../../x",
        "context",
        "context/",
        "context//a",
        "context/./a",
        "other",
        "context/a\0b",
    ],
)
async def test_a_path_that_leads_elsewhere_is_refused(client: httpx2.AsyncClient, rig: HostRig, path: str) -> None:
    answer = await put(client, url(), path)
    assert answer.status_code == 400
    assert "no path of a file" in error_of(answer)
    assert list(rig.layout.builds.iterdir()) == []


@pytest.mark.parametrize(("first", "second"), [("context/a", "context/a/b"), ("context/a/b", "context/a")])
async def test_a_file_and_a_folder_of_one_name_are_refused(client: httpx2.AsyncClient, first: str, second: str) -> None:
    one = url()
    assert (await put(client, one, first)).status_code == 200
    answer = await put(client, one, second)
    assert answer.status_code == 400
    assert "path: " in error_of(answer)


async def test_long_names_are_refused_in_a_sentence(client: httpx2.AsyncClient) -> None:
    answer = await put(client, url(), f"context/{'x' * 300}")
    assert (answer.status_code, error_of(answer)) == (400, "path: it cannot be a file here: File name too long")


@pytest.mark.parametrize("build", ["bld-1", "..", "sbx-0123456789bcdfgh", "%2e%2e"])
async def test_a_build_has_an_id_of_its_form(client: httpx2.AsyncClient, build: str) -> None:
    assert (await put(client, f"{ROOT}/builds/{build}", "context/a")).status_code == 404


async def test_too_much_is_refused_while_it_comes_and_nothing_of_it_is_kept(
    client: httpx2.AsyncClient, rig: HostRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds_api, "MAX_CONTEXT_BYTES", 10)
    monkeypatch.setattr(builds_api, "MAX_CONTEXT_FILES", 2)
    build = new_build_id()
    assert (await put(client, url(build), "context/a", b"12345678")).status_code == 200
    answer = await put(client, url(build), "context/b", b"123")
    assert (answer.status_code, "too large" in error_of(answer)) == (507, True)
    assert (await put(client, url(build), "context/a", b"1234567890")).status_code == 200
    assert (await put(client, url(build), "context/b", b"")).status_code == 200
    answer = await put(client, url(build), "context/c", b"")
    assert (answer.status_code, "at most 2 files" in error_of(answer)) == (507, True)
    assert sorted(entry.name for entry in (rig.layout.builds / build / "context").iterdir()) == ["a", "b"]


async def test_a_transfer_that_breaks_off_leaves_nothing(client: httpx2.AsyncClient, rig: HostRig) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise ConnectionResetError("the sender is gone")

    with pytest.raises(ConnectionResetError):
        await client.put(f"{url()}/files", params={"path": "context/a"}, content=broken())
    assert [path for path in rig.layout.builds.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"template": "A B", "source": {"kind": "rootfs"}}, "template: 'A B' is no name"),
        ({"template": "a", "source": {"kind": "recipe", "recipe": "nothing"}}, "there is no recipe"),
        ({"template": "a", "source": {"kind": "other"}}, "source"),
        ({"template": "a", "source": {"kind": "snapshot", "snapshot": "x"}, "cpu": 2}, "has the snapshot's size"),
        ({"template": "a", "source": {"kind": "rootfs"}, "cpu": 1000}, "at most 16 processors"),
        ({"template": "a", "source": {"kind": "rootfs"}, "memory_mb": 1}, "memory_mb"),
        ({"template": "a", "source": {"kind": "rootfs"}, "disk_gb": 65}, "at most 64 GiB"),
        ({"template": "a"}, "source"),
    ],
)
async def test_an_order_that_makes_no_sense_is_refused(
    client: httpx2.AsyncClient, order: dict[str, object], said: str
) -> None:
    answer = await client.post(url(), json=order)
    assert answer.status_code == 400
    assert said in error_of(answer)


async def test_a_snapshot_becomes_a_template_that_outlives_it(client: httpx2.AsyncClient, rig: HostRig) -> None:
    sandbox, snapshot = await snapshot_of(client, env={"KEPT": "1"}, secrets={"TOKEN": "secret"})
    one = url()
    news = await built(client, one, {"kind": "snapshot", "snapshot": snapshot})
    assert news[-1].template is not None
    assert news[-1].template.name == "made"
    assert (await client.delete(f"{ROOT}/snapshots/{snapshot}")).status_code == 204
    made = new_sandbox_id()
    answer = await client.post(f"{ROOT}/incarnations", json={"id": made, "template": "made"})
    assert answer.status_code == 201, answer.text
    guest = rig.driver.machines[-1].guest
    assert (guest.env["KEPT"], guest.secrets, guest.frozen) == ("1", {}, False)  # type: ignore[attr-defined]
    listed = (await client.get(f"{ROOT}/templates")).json()["items"]
    assert {TemplateView.model_validate(each).name for each in listed} == {"base", "made"}
    assert (await client.delete(f"{ROOT}/incarnations/{sandbox}")).status_code == 200


async def test_a_snapshot_that_is_not_there_fails_the_build(client: httpx2.AsyncClient) -> None:
    news = await built(client, url(), {"kind": "snapshot", "snapshot": new_snapshot_id()})
    assert news[-1].error is not None
    assert news[-1].error.code == "not_found"


async def test_a_second_build_has_to_wait_and_so_has_one_beside_a_bake(
    client: httpx2.AsyncClient, rig: HostRig
) -> None:
    source = {"kind": "snapshot", "snapshot": new_snapshot_id()}
    with the_only_bake(rig.layout):
        answer = await client.post(url(), json={"template": "made", "source": source})
    assert answer.status_code == 503
    assert "in use by process" in error_of(answer)
    assert (await built(client, url(), source))[-1].error is not None


async def test_what_was_sent_is_gone_once_the_build_has_run(client: httpx2.AsyncClient, rig: HostRig) -> None:
    build = new_build_id()
    await put(client, url(build), "context/a")
    await built(client, url(build), {"kind": "snapshot", "snapshot": new_snapshot_id()})
    assert list(rig.layout.builds.iterdir()) == []


async def test_a_start_removes_what_an_earlier_host_agent_has_left_of_builds(rig: HostRig) -> None:
    for folder in (rig.layout.builds, rig.layout.images, rig.layout.templates):
        (folder / ".draft-x").mkdir()
        (folder / ".draft-x" / "file").write_text("x")
    (rig.layout.builds / new_build_id()).mkdir()
    await sweep_builds(rig.layout)
    assert list(rig.layout.builds.iterdir()) == []
    left = [*rig.layout.images.iterdir(), *rig.layout.templates.iterdir()]
    assert not [entry for entry in left if entry.name.startswith(".")]


async def test_a_build_that_takes_too_long_is_ended(rig: HostRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds_api, "_MINUTE_S", 0)
    monkeypatch.setattr(builds_api, "_LOOK_EVERY_S", 0)
    async with rig.client() as client:
        _, snapshot = await snapshot_of(client)
        news = await built(client, url(), {"kind": "snapshot", "snapshot": snapshot})
        assert news[-1].error is not None
        assert "has not ended within 120 minutes" in news[-1].error.error
        assert [each["name"] for each in (await client.get(f"{ROOT}/templates")).json()["items"]] == [BASE]


async def test_a_build_that_leaves_less_than_the_reserve_is_ended(
    rig: HostRig, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, snapshot = await snapshot_of(client)
    monkeypatch.setattr(builds_api, "_LOOK_EVERY_S", 0)
    monkeypatch.setattr(room, "free_and_total", lambda _place: (0, 1 << 40))
    news = await built(client, url(), {"kind": "snapshot", "snapshot": snapshot})
    assert news[-1].error is not None
    assert news[-1].error.code == "out_of_space"


async def test_of_logs_of_workspaces_builds_the_newest_are_kept(
    rig: HostRig, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds_api, "_LOGS_KEPT", 2)
    for age, name in enumerate(("tools", "tpl-a", "tpl-b", "tpl-c")):
        (rig.layout.logs / f"bake-{name}.log").touch()
        os.utime(rig.layout.logs / f"bake-{name}.log", (age, age))
    await built(client, url(), {"kind": "snapshot", "snapshot": new_snapshot_id()})
    kept = {path.name for path in rig.layout.logs.glob("bake-*")} & {
        f"bake-{name}.log" for name in ("tools", "tpl-a", "tpl-b", "tpl-c")
    }
    assert kept == {"bake-tools.log", "bake-tpl-b.log", "bake-tpl-c.log"}
