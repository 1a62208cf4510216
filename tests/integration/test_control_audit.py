"""The audit log: every change, who made it, and what came of it; and nothing that is nobody's business."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from control_rig import KEY, Rig, control_rig
from torpor.control.service.auditor import MORE_REFUSALS
from torpor.control.store.sql import open_store
from torpor.errors import Failed, RestoreFailed
from two_workspaces import new_key

SECRET = "canary-5f0e"


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def log(rig: Rig, key: str = KEY, **query: Any) -> list[dict[str, Any]]:
    """Return what the log says, the oldest first."""
    answer = await rig.http.get("/v1/audit", params={"order": "oldest", "limit": 1000, **query}, headers=bearer(key))
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def told(entry: dict[str, Any]) -> tuple[str, str, int | None]:
    return entry["kind"], entry["action"], entry["status"]


async def test_a_change_is_told_with_who_made_it_and_what_it_was_about(rig: Rig) -> None:
    made = await rig.http.post("/v1/sandboxes", json={}, headers={"x-request-id": "mine-1"})
    (entry,) = await log(rig)
    assert entry == {
        "number": entry["number"],
        "at": rig.clock.now().isoformat().replace("+00:00", "Z"),
        "kind": "change",
        "action": "POST /v1/sandboxes",
        "targets": [made.json()["id"]],
        "status": 201,
        "workspace": "default",
        "key": KEY[:12],
        "client": "memory",
        "request_id": "mine-1",
        "count": 1,
    }


async def test_each_verb_names_what_it_was_about_and_what_it_made(rig: Rig) -> None:
    one = await rig.create()
    snapshot = (await rig.post(one, "snapshots"))["id"]
    children = [child["id"] for child in (await rig.post(one, "fork", count=2))["children"]]
    await rig.post(one, "rollback", snapshot=snapshot)
    other = await rig.create(from_snapshot=snapshot)
    await rig.http.patch(f"/v1/sandboxes/{one}/lifecycle", json={"ttl_seconds": 5})
    await rig.http.delete(f"/v1/snapshots/{snapshot}")
    await rig.http.delete("/v1/templates/agent")
    key = await new_key(rig, "default")
    await rig.http.delete(f"/v1/me/tokens/{key[:10]}")
    assert [(entry["action"], entry["targets"]) for entry in await log(rig)] == [
        ("POST /v1/sandboxes", [one]),
        ("POST /v1/sandboxes/{id}/snapshots", [one, snapshot]),
        ("POST /v1/sandboxes/{id}/fork", [one, *children]),
        ("POST /v1/sandboxes/{id}/rollback", [one, snapshot]),
        ("POST /v1/sandboxes", [other, snapshot]),
        ("PATCH /v1/sandboxes/{id}/lifecycle", [one]),
        ("DELETE /v1/snapshots/{id}", [snapshot]),
        ("DELETE /v1/templates/{name}", ["agent"]),
        ("POST /v1/me/tokens", [key[:12]]),
        ("DELETE /v1/me/tokens/{prefix}", [key[:10]]),
    ]


async def test_what_only_reads_leaves_no_entry(rig: Rig) -> None:
    one = await rig.create()
    for path in ("", "/lifecycle", "/events", "/usage", "/logs", "/processes"):
        assert (await rig.http.get(f"/v1/sandboxes/{one}{path}")).status_code == 200
    assert len(await log(rig)) == 1


async def test_what_is_done_inside_a_sandbox_is_told_apart_from_changes(rig: Rig) -> None:
    one = await rig.create()
    await rig.post(one, "exec", cmd="true")
    job = (await rig.post(one, "processes", cmd="hang"))["id"]
    await rig.write(one, "text")
    await rig.http.post(f"/v1/sandboxes/{one}/processes/{job}/signal", json={"signal": "SIGTERM"})
    uses = await log(rig, kind="use")
    assert [(entry["action"].removeprefix("POST /v1/sandboxes/{id}/"), entry["targets"]) for entry in uses] == [
        ("exec", [one]),
        ("processes", [one]),
        ("PUT /v1/sandboxes/{id}/fs", [one]),
        ("processes/{pid}/signal", [one, job]),
    ]
    assert [told(entry) for entry in await log(rig, kind="change")] == [("change", "POST /v1/sandboxes", 201)]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "action"),
    [
        ("POST", "/v1/sandboxes", {"ttl_seconds": 0}, 400, "POST /v1/sandboxes"),
        ("DELETE", "/v1/sandboxes/sbx-0000000000000000", None, 404, "DELETE /v1/sandboxes/{id}"),
        ("DELETE", f"/v1/snapshots/{SECRET}", None, 404, "DELETE /v1/snapshots/{id}"),
        ("POST", f"/v1/{SECRET}", {}, 404, "POST (no route)"),
        ("PUT", "/v1/sandboxes", {}, 405, "PUT /v1/sandboxes"),
    ],
)
async def test_what_was_refused_is_told_and_changed_nothing(
    rig: Rig, method: str, path: str, body: Any, status: int, action: str
) -> None:
    assert (await rig.http.request(method, path, json=body)).status_code == status
    (entry,) = await log(rig)
    assert told(entry) == ("refused", action, status)
    assert SECRET not in str(entry)


async def test_what_names_no_key_is_not_kept_in_the_place_of_one(rig: Rig) -> None:
    for prefix in ("%1b%5d0%3bhello", "hello-all-of", "tpr_%1b%5b31m"):
        assert (await rig.http.delete(f"/v1/me/tokens/{prefix}")).status_code == 404
    assert (await rig.http.delete("/v1/me/tokens/tpr_none")).status_code == 404
    assert [entry["targets"] for entry in await log(rig)] == [[], [], [], ["tpr_none"]]


async def test_nothing_that_was_said_or_answered_is_in_it(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "torpor.db")
    async with control_rig(store) as rig:
        one = await rig.create(env={"A": SECRET})
        await rig.post(one, "exec", cmd=f"echo {SECRET}", env={"B": SECRET}, stdin=SECRET)
        await rig.http.put(f"/v1/sandboxes/{one}/fs", params={"path": f"/work/{SECRET}"}, content=SECRET)
        token = (await rig.http.post("/v1/me/tokens", json={"label": SECRET})).json()["token"]
        await rig.http.delete(f"/v1/me/tokens/{token}")  # a mistake that puts a whole key into a path
        await rig.http.post(f"/v1/{SECRET}?{SECRET}", headers={"x-request-id": "r", "user-agent": SECRET})
        await rig.http.post("/v1/sandboxes", headers=bearer(SECRET))
        entries = await log(rig, workspace="*")
    await store.aclose()
    assert len(entries) == 7
    with closing(sqlite3.connect(tmp_path / "torpor.db")) as connection:
        kept = str(connection.execute("SELECT * FROM audit").fetchall())
    for secret in (SECRET, token, token[12:]):
        assert secret not in kept
        assert secret not in str(entries)


async def test_a_change_is_on_the_disk_when_it_is_answered(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    store = await open_store(tmp_path / "a" / "torpor.db")
    async with control_rig(store) as rig:
        made = await rig.create()
        shutil.copytree(tmp_path / "a", tmp_path / "b")  # what a killed server leaves
    await store.aclose()
    left = await open_store(tmp_path / "b" / "torpor.db")
    async with control_rig(left) as rig:
        assert [entry["targets"] for entry in await log(rig)] == [[made]]
    await left.aclose()


async def test_a_key_reads_what_was_done_in_its_workspace_and_an_admins_in_all(rig: Rig) -> None:
    ours, theirs = await new_key(rig, "ours"), await new_key(rig, "theirs")
    for key in (ours, theirs):
        await rig.http.post("/v1/sandboxes", json={}, headers=bearer(key))
    assert [entry["key"] for entry in await log(rig, ours)] == [ours[:12]]
    for workspace in ("theirs", "*"):
        answer = await rig.http.get("/v1/audit", params={"workspace": workspace}, headers=bearer(ours))
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert [entry["key"] for entry in await log(rig, workspace="theirs")] == [theirs[:12]]
    assert {entry["workspace"] for entry in await log(rig, workspace="*")} == {"default", "ours", "theirs"}


async def test_the_log_is_paged_from_either_end(rig: Rig) -> None:
    made = [await rig.create() for _ in range(5)]

    async def walked(order: str) -> list[str]:
        cursor: dict[str, str] = {}
        found: list[str] = []
        while True:
            page = (await rig.http.get("/v1/audit", params={"limit": 2, "order": order, **cursor})).json()
            found += [entry["targets"][0] for entry in page["items"]]
            if not page["items"] or page["next_cursor"] is None:
                return found
            cursor = {"cursor": page["next_cursor"]}

    assert await walked("newest") == made[::-1]
    assert await walked("oldest") == made
    assert (await rig.http.get("/v1/audit", params={"cursor": "x"})).status_code == 400


async def test_wrong_keys_are_told_one_by_one_and_counted_where_they_are_many(rig: Rig) -> None:
    for number in range(100):
        await rig.http.post("/v1/sandboxes", headers=bearer(f"tpr_{number:043d}"))
    assert len(await log(rig, workspace="*")) == 60
    await rig.clock.jump(1)
    await rig.http.get("/v1/me", headers=bearer("wrong"))
    entries = await log(rig, workspace="*")
    assert [(entry["action"], entry["count"]) for entry in entries[-2:]] == [(MORE_REFUSALS, 40), ("GET (no route)", 1)]
    assert {(entry["kind"], entry["key"], entry["workspace"]) for entry in entries} == {("refused", None, None)}
    assert await log(rig) == []


async def test_the_use_of_a_key_that_is_over_is_told_by_its_beginning(rig: Rig) -> None:
    token = await new_key(rig, "lab")
    await rig.http.delete(f"/v1/me/tokens/{token[:12]}", params={"workspace": "lab"})
    await rig.http.post("/v1/sandboxes", headers=bearer(token))
    (entry,) = await log(rig, workspace="lab")
    assert (*told(entry), entry["key"]) == ("refused", "POST (no route)", 401, token[:12])


async def test_an_answer_that_began_early_is_told_again_when_it_is_known_what_came_of_it(rig: Rig) -> None:
    hold = rig.host.hold("restore")
    making = asyncio.create_task(rig.http.post("/v1/sandboxes", json={}))
    await hold.reached.wait()
    await rig.clock.jump(10)
    assert [told(entry) for entry in await log(rig)] == [("change", "POST /v1/sandboxes", 201)]
    hold.release()
    made = (await making).json()["id"]
    assert [entry["targets"] for entry in await log(rig)] == [[], [made]]


async def test_an_answer_that_is_broken_off_is_told_as_one_that_nobody_got(rig: Rig) -> None:
    hold = rig.host.hold("restore")
    making = asyncio.create_task(rig.http.post("/v1/sandboxes", json={}))
    await hold.reached.wait()
    await rig.clock.jump(10)
    rig.host.fail("restore", RestoreFailed("it did not work"))
    hold.release()
    with pytest.raises(httpx2.HTTPError):
        await making
    assert [entry["status"] for entry in await log(rig)] == [201, None]


async def test_a_failure_is_told_with_its_status(rig: Rig) -> None:
    rig.host.fail("restore", RestoreFailed("it did not work"))
    assert (await rig.http.post("/v1/sandboxes", json={})).status_code == 500
    assert [told(entry) for entry in await log(rig)] == [("change", "POST /v1/sandboxes", 500)]


async def test_while_the_log_cannot_be_written_nothing_is_changed_once_too_much_waits(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torpor.control.service.auditor._MOST_WAITING", 1)

    async def full(*_: object, **__: object) -> None:
        raise Failed("the disk is full")

    monkeypatch.setattr(rig.store, "write_audit", full)
    assert (await rig.http.post("/v1/sandboxes", json={})).status_code == 201
    refused = await rig.http.post("/v1/sandboxes", json={})
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    assert (await rig.http.get("/v1/sandboxes")).status_code == 200
    monkeypatch.undo()
    assert (await rig.http.post("/v1/sandboxes", json={})).status_code == 201
    assert [entry["status"] for entry in await log(rig)] == [201, 201]
    assert len((await rig.http.get("/v1/sandboxes")).json()["items"]) == 2
