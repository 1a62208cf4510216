"""Creating, listing, showing and deleting sandboxes through the API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from control_rig import NOBODY, Rig, control_rig
from torpor.errors import BootFailed, Busy, NoCapacity, OutOfSpace, RestoreFailed
from torpor.model.ids import SandboxId, WorkspaceId
from torpor.model.lifecycle import State


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


async def test_a_created_sandbox_runs_and_is_shown_whole(rig: Rig) -> None:
    answer = await rig.http.post(
        "/v1/sandboxes",
        json={"template": "agent", "metadata": {"run": "7"}, "name": "web", "env": {"A": "b"}, "network": "none"},
    )
    assert answer.status_code == 201
    made = answer.json()
    assert made["id"] in rig.host.machines
    assert rig.host.machines[made["id"]].env == {"A": "b"}
    assert made == (await rig.http.get(f"/v1/sandboxes/{made['id']}")).json()
    expected = {
        "status": "running",
        "template": "agent",
        "name": "web",
        "metadata": {"run": "7"},
        "ttl_seconds": 3600,
        "persistent": False,
        "created_at": "2030-01-01T00:00:00Z",
        "expires_at": "2030-01-01T01:00:00Z",
        "boot_ms": 90,
        "boot_mode": "restore",
        "network": "none",
        "cpu": 1,
        "memory_mb": 512,
        "disk_gb": 8,
    }
    assert expected.items() <= made.items()


async def test_a_persistent_sandbox_has_no_end(rig: Rig) -> None:
    made = (await rig.http.post("/v1/sandboxes", json={"persistent": True})).json()
    assert (made["persistent"], made["ttl_seconds"], made["expires_at"]) == (True, None, None)


@pytest.mark.parametrize(
    ("body", "status", "code", "said"),
    [
        ({"template": "nope"}, 400, "invalid_request", "'nope'; there are: agent, base"),
        ({"template": 3}, 400, "invalid_request", "template has to be a valid string"),
        ({"template": ""}, 400, "invalid_request", "template"),
        ({"metadata": {"a": 1}}, 400, "invalid_request", "metadata.a"),
        ({"metadata": [1]}, 400, "invalid_request", "metadata"),
        ({"env": {"A=B": "c"}}, 400, "invalid_request", "env.A=B"),
        ({"env": {"A": "\0"}}, 400, "invalid_request", "env.A"),
        ({"ttl_seconds": 0}, 400, "invalid_request", "ttl_seconds"),
        ({"ttl_seconds": 2.5}, 400, "invalid_request", "ttl_seconds"),
        ({"ttl_seconds": 10**30}, 400, "invalid_request", "ttl_seconds"),
        ({"ttl_seconds": 5, "persistent": True}, 400, "invalid_request", "persistent"),
        ({"name": "-x"}, 400, "invalid_request", "name"),
        ({"name": "x" * 64}, 400, "invalid_request", "name"),
        ({"cpu": 4}, 400, "unsupported", "cpu=1"),
        ({"memory_mb": 1024}, 400, "unsupported", "memory_mb=512"),
        ({"disk_gb": 9}, 400, "unsupported", "disk_gb=8"),
        ({"network": "internet"}, 400, "unsupported", "no network"),
        ({"network": "moon"}, 400, "invalid_request", "network"),
        ({"from_snapshot": "snp-1"}, 404, "not_found", "snp-1"),
        ({"from_snapshot": "snp-1111111111111111"}, 404, "not_found", "snp-1111111111111111"),
        ({"from_snapshot": 1}, 400, "invalid_request", "from_snapshot"),
        ({"volumes": [{"id": "v"}]}, 400, "invalid_request", "volumes"),
        ({"volumes": [{"name": "v"}]}, 404, "not_found", "volume 'v'"),
        ({"secrets": ["A=b"]}, 400, "invalid_request", "secrets has to be a valid dictionary"),
        ({"idle_timeout_seconds": 0}, 400, "invalid_request", "idle_timeout_seconds"),
        ({"on_idle": "stop"}, 400, "invalid_request", "on_idle"),
        ({"on_crash": "retry"}, 400, "invalid_request", "on_crash"),
        ({"checkpoint_every_seconds": 0}, 400, "invalid_request", "checkpoint_every_seconds"),
        ({"checkpoint_every_execs": 0}, 400, "invalid_request", "checkpoint_every_execs"),
        ({"checkpoint_keep": 101}, 400, "invalid_request", "checkpoint_keep"),
        ([], 400, "invalid_request", "JSON object"),
        ("text", 400, "invalid_request", "JSON object"),
        (None, 400, "invalid_request", "the body is missing"),
    ],
)
async def test_a_bad_wish_is_one_sentence_and_leaves_nothing(
    rig: Rig, body: object, status: int, code: str, said: str
) -> None:
    answer = await rig.http.post("/v1/sandboxes", json=body)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code)
    assert isinstance(problem["error"], str)
    assert said in problem["error"]
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert not rig.host.machines
    assert await rig.store.living() == []


async def test_an_unknown_template_comes_with_the_command_that_makes_it(rig: Rig) -> None:
    answer = await rig.http.post("/v1/sandboxes", json={"template": "nope"})
    assert answer.json()["hint"] == "name one of them, or run `torpor template build nope`"


@pytest.mark.parametrize(
    "body",
    [
        {"cpu": 1, "memory_mb": 512, "disk_gb": 8},
        {"from_snapshot": None, "volumes": None, "on_idle": None, "cpu": None, "metadata": {}, "network": None},
        {"volumes": [], "secrets": {}},
        {"something_new": {"deep": [1]}},
    ],
)
async def test_fields_that_ask_for_nothing_special_are_fine(rig: Rig, body: dict[str, Any]) -> None:
    assert await rig.create(**body) in rig.host.machines


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NoCapacity("full"), 503),
        (Busy("later"), 503),
        (RestoreFailed("no answer from the guest"), 500),
        (BootFailed("no boot"), 500),
        (OutOfSpace("the host's disk is full"), 507),
    ],
)
async def test_a_creation_that_definitely_failed_leaves_nothing(rig: Rig, error: Exception, status: int) -> None:
    rig.host.fail("restore", error)  # type: ignore[arg-type]  # each is a TorporError
    answer = await rig.http.post("/v1/sandboxes", json={"name": "web"})
    assert answer.status_code == status
    assert ("retry-after" in answer.headers) is (status == 503)
    assert (await rig.http.get("/v1/sandboxes")).json()["items"] == []
    await rig.create(name="web")


async def test_an_unreachable_host_is_a_503(rig: Rig) -> None:
    rig.host.down = True
    answer = await rig.http.post("/v1/sandboxes", json={})
    assert (answer.status_code, answer.json()["code"]) == (503, "host_unreachable")


async def test_a_name_is_unique_among_the_living(rig: Rig) -> None:
    first = await rig.create(name="web")
    answer = await rig.http.post("/v1/sandboxes", json={"name": "web"})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert len(rig.host.machines) == 1
    await rig.http.delete(f"/v1/sandboxes/{first}")
    await rig.create(name="web")


async def test_a_list_is_paged_newest_first(rig: Rig) -> None:
    made = []
    for _ in range(5):
        made.append(await rig.create())
        await rig.clock.jump(1)
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(3):
        query = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = (await rig.http.get("/v1/sandboxes", params=query)).json()
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert seen == made[::-1]
    assert cursor is None


async def test_a_list_is_filtered_by_metadata_and_status(rig: Rig) -> None:
    first = await rig.create(metadata={"run": "1", "x.y": "z"})
    second = await rig.create(metadata={"run": "2"})
    rig.host.die(second)
    await rig.http.post(f"/v1/sandboxes/{second}/exec", json={"cmd": "true"})

    async def listed(**query: str) -> list[str]:
        return [item["id"] for item in (await rig.http.get("/v1/sandboxes", params=query)).json()["items"]]

    assert await listed(**{"metadata.run": "1"}) == [first]
    assert await listed(**{"metadata.run": "1", "metadata.x.y": "z"}) == [first]
    assert await listed(**{"metadata.run": "1", "metadata.x.y": "no"}) == []
    assert await listed(status="failed") == [second]
    assert await listed(status="deleted") == []


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=many", "limit"),
        ("cursor=!!", "cursor"),
        ("cursor=aGVsbG8", "cursor"),
        ("&".join(f"metadata.k{number}=v" for number in range(65)), "65 pairs of metadata"),
        ("status=sleepy", "creating, running, paused, snapshotting"),
    ],
)
async def test_a_bad_question_for_a_list_is_refused(rig: Rig, query: str, said: str) -> None:
    answer = await rig.http.get(f"/v1/sandboxes?{query}")
    assert answer.status_code == 400
    assert said in answer.json()["error"]


@pytest.mark.parametrize("name", [NOBODY, "x", "sbx-..%2f..", "%00", "a" * 200])
@pytest.mark.parametrize(
    ("method", "rest"),
    [("GET", ""), ("DELETE", ""), ("GET", "/lifecycle"), ("GET", "/fs?path=/a"), ("GET", "/logs")],
)
async def test_an_id_of_nobody_is_not_found(rig: Rig, name: str, method: str, rest: str) -> None:
    answer = await rig.http.request(method, f"/v1/sandboxes/{name}{rest}")
    assert answer.status_code in ({404} if len(name) < 100 else {400})
    assert isinstance(answer.json()["error"], str)


async def test_another_workspaces_sandbox_is_not_found(rig: Rig) -> None:
    made = await rig.create()
    sandbox = await rig.store.get(SandboxId(made))
    assert sandbox is not None
    other = SandboxId("sbx-2222222222222222")
    await rig.store.add(replace(sandbox, id=other, workspace=WorkspaceId("other")))
    for method in ("GET", "DELETE"):
        assert (await rig.http.request(method, f"/v1/sandboxes/{other}")).status_code == 404
    assert (await rig.http.post(f"/v1/sandboxes/{other}/exec", json={"cmd": "true"})).status_code == 404
    assert [item["id"] for item in (await rig.http.get("/v1/sandboxes")).json()["items"]] == [made]


async def test_a_deletion_removes_all_and_again_is_fine(rig: Rig) -> None:
    made = await rig.create()
    for _ in range(2):
        answer = await rig.http.delete(f"/v1/sandboxes/{made}")
        assert (answer.status_code, answer.content) == (204, b"")
    assert made not in rig.host.machines
    assert (await rig.http.get(f"/v1/sandboxes/{made}")).status_code == 404
    assert (await rig.http.get("/v1/sandboxes")).json()["items"] == []
    assert rig.host.calls["close"] == 1


async def test_deletions_at_once_are_one(rig: Rig) -> None:
    made = await rig.create()
    hold = rig.host.hold("close")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(rig.http.delete(f"/v1/sandboxes/{made}")) for _ in range(5)]
        await hold.reached.wait()
        hold.release()
    assert {task.result().status_code for task in tasks} == {204}
    assert rig.host.calls["close"] == 1


async def test_a_deletion_during_the_creation_waits_for_it(rig: Rig) -> None:
    hold = rig.host.hold("restore")
    async with asyncio.TaskGroup() as group:
        creating = group.create_task(rig.http.post("/v1/sandboxes", json={}))
        await hold.reached.wait()
        (sandbox,) = await rig.store.living()
        deleting = group.create_task(rig.http.delete(f"/v1/sandboxes/{sandbox.id}"))
        await asyncio.sleep(0)
        hold.release()
    assert (creating.result().status_code, deleting.result().status_code) == (201, 204)
    assert not rig.host.machines


async def test_a_deletion_whose_answer_was_lost_can_be_asked_again(rig: Rig) -> None:
    made = await rig.create()
    rig.host.lose_answer("close")
    assert (await rig.http.delete(f"/v1/sandboxes/{made}")).status_code == 500
    assert await rig.status(made) == "deleting"
    assert (await rig.http.delete(f"/v1/sandboxes/{made}")).status_code == 204
    assert await rig.status(made) == "deleted"


@pytest.mark.parametrize("state", [State.CREATING, State.DELETING, State.FAILED])
async def test_a_sandbox_left_in_any_state_can_be_deleted(rig: Rig, state: State) -> None:
    made = await rig.create()
    await rig.store.move(SandboxId(made), {State.RUNNING}, state, rig.clock.now())
    assert (await rig.http.delete(f"/v1/sandboxes/{made}")).status_code == 204
    assert await rig.status(made) == "deleted"
    assert made not in rig.host.machines


async def test_the_life_of_a_sandbox_can_be_seen_and_set(rig: Rig) -> None:
    made = await rig.create(ttl_seconds=60)
    url = f"/v1/sandboxes/{made}/lifecycle"
    shown = (await rig.http.get(url)).json()
    assert shown == {
        "ttl_seconds": 60,
        "persistent": False,
        "idle_seconds": None,
        "expires_at": "2030-01-01T00:01:00Z",
    }
    await rig.clock.jump(30)
    longer = (await rig.http.patch(url, json={"ttl_seconds": 60})).json()
    assert longer["expires_at"] == "2030-01-01T00:01:30Z"
    for_ever = (await rig.http.patch(url, json={"persistent": True})).json()
    assert (for_ever["persistent"], for_ever["ttl_seconds"], for_ever["expires_at"]) == (True, None, None)
    mortal = (await rig.http.patch(url, json={"persistent": False})).json()
    assert (mortal["persistent"], mortal["ttl_seconds"]) == (False, 3600)


async def test_not_persistent_says_nothing_about_a_sandbox_that_has_an_end(rig: Rig) -> None:
    made = await rig.create(ttl_seconds=60)
    await rig.clock.jump(10)
    kept = (await rig.http.patch(f"/v1/sandboxes/{made}/lifecycle", json={"persistent": False})).json()
    assert kept["expires_at"] == "2030-01-01T00:01:00Z"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_request"),
        ({"ttl_seconds": 0}, "invalid_request"),
        ({"ttl_seconds": -5}, "invalid_request"),
        ({"ttl_seconds": "9"}, "invalid_request"),
        ({"ttl_seconds": 9, "persistent": True}, "invalid_request"),
        ({"idle_seconds": -1}, "invalid_request"),
        ({"idle_seconds": 9, "ttl_seconds": 5, "persistent": True}, "invalid_request"),
    ],
)
async def test_a_bad_change_of_life_changes_nothing(rig: Rig, body: dict[str, Any], code: str) -> None:
    made = await rig.create(ttl_seconds=60)
    answer = await rig.http.patch(f"/v1/sandboxes/{made}/lifecycle", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    sandbox = await rig.store.get(SandboxId(made))
    assert sandbox is not None
    assert sandbox.ttl_seconds == 60
