"""Volumes: who may have one, whoever asks at the same time; and what is left of what was cut off, which is nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from control_rig import Rig, control_rig
from torpor.control.reconcile import reconcile
from torpor.errors import OutOfSpace, RestoreFailed
from torpor.model.capacity import GIB, MIB, Quota
from two_workspaces import new_key


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig(quota=Quota(volumes=3, volume_bytes=2 * GIB, volume_size_bytes=GIB)) as rig:
        yield rig


async def make(rig: Rig, name: str = "data", size_mb: int = 64) -> httpx2.Response:
    return await rig.http.post("/v1/volumes", json={"name": name, "size_mb": size_mb})


async def create(rig: Rig, *volumes: dict[str, Any], key: str | None = None) -> httpx2.Response:
    headers = {} if key is None else {"idempotency-key": key}
    return await rig.http.post("/v1/sandboxes", json={"volumes": list(volumes)}, headers=headers)


async def holders(rig: Rig, name: str = "data") -> list[str]:
    return [each["sandbox_id"] for each in (await rig.http.get(f"/v1/volumes/{name}")).json()["attached_to"]]


def refused(answer: httpx2.Response, status: int, code: str, said: str = "") -> None:
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code), problem
    assert said in problem["error"]


async def test_a_volume_is_made_shown_listed_and_deleted(rig: Rig) -> None:
    made = await make(rig)
    assert made.status_code == 201, made.text
    told = made.json()
    assert (told["name"], told["size_mb"], told["attached_to"], told["problem"]) == ("data", 64, [], None)
    assert rig.host.volumes.files == {told["id"]: 64 * MIB}
    assert (await rig.http.get("/v1/volumes/data")).json() == told
    assert (await rig.http.get("/v1/volumes")).json() == {"items": [told]}
    refused(await make(rig), 409, "conflict", "'data'")
    assert (await rig.http.delete("/v1/volumes/data")).status_code == 204
    refused(await rig.http.delete("/v1/volumes/data"), 404, "not_found")
    assert (rig.host.volumes.files, await rig.store.every_volume()) == ({}, [])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "data"},
        {"name": "", "size_mb": 64},
        {"name": "a/b", "size_mb": 64},
        {"name": "../data", "size_mb": 64},
        {"name": "x" * 64, "size_mb": 64},
        {"name": "data", "size_mb": 15},
        {"name": "data", "size_mb": 64.5},
        {"name": "data", "size_mb": "64"},
        {"name": "data", "size_mb": 2**40},
    ],
)
async def test_what_makes_no_volume_is_refused_and_makes_nothing(rig: Rig, body: dict[str, Any]) -> None:
    refused(await rig.http.post("/v1/volumes", json=body), 400, "invalid_request")
    assert (rig.host.volumes.files, await rig.store.every_volume()) == ({}, [])


async def test_quotas_of_count_size_and_space_are_told_with_their_figures(rig: Rig) -> None:
    refused(await make(rig, size_mb=1025), 429, "quota_exceeded", "1024 MiB")
    for name in ("a", "b"):
        assert (await make(rig, name, 900)).status_code == 201
    answer = await make(rig, "c", 900)
    refused(answer, 429, "quota_exceeded", "900 MiB more")
    assert answer.json()["details"] == {"resource": "volume_space", "limit": 2 * GIB, "used": 1800 * MIB}
    assert (await make(rig, "c", 16)).status_code == 201
    refused(await make(rig, "d", 16), 429, "quota_exceeded", "3 of 3 volumes")
    quota = (await rig.http.get("/v1/quota")).json()
    assert quota["volumes"] == {"limit": 3, "used": 3}
    assert quota["volume_space"] == {"limit": 2 * GIB, "used": 1816 * MIB}


async def test_one_writes_or_many_read_and_who_has_it_is_named(rig: Rig) -> None:
    await make(rig)
    writer = (await create(rig, {"name": "data"})).json()
    assert writer["volumes"] == [{"name": "data", "path": "/volumes/data", "read_only": False, "is_copy": False}]
    for wish in ({"name": "data"}, {"name": "data", "read_only": True}):
        refused(await create(rig, wish), 409, "conflict", writer["id"])
    assert await holders(rig) == [writer["id"]]
    await rig.http.delete(f"/v1/sandboxes/{writer['id']}")
    readers = [(await create(rig, {"name": "data", "read_only": True})).json()["id"] for _ in range(2)]
    refused(await create(rig, {"name": "data"}), 409, "conflict", "read-only")
    assert sorted(await holders(rig)) == sorted(readers)


@pytest.mark.parametrize("end", ["hibernate", "pause", "die"])
async def test_a_sandbox_that_does_not_run_keeps_its_volumes(rig: Rig, end: str) -> None:
    await make(rig)
    sandbox = (await create(rig, {"name": "data"})).json()["id"]
    rig.host.die(sandbox) if end == "die" else await rig.post(sandbox, end)
    await reconcile(rig.plane)
    refused(await create(rig, {"name": "data"}), 409, "conflict", sandbox)
    refused(await rig.http.delete("/v1/volumes/data"), 409, "conflict", sandbox)
    await rig.http.delete(f"/v1/sandboxes/{sandbox}")
    assert (await rig.http.delete("/v1/volumes/data")).status_code == 204


@pytest.mark.parametrize("read_only", [True, False])
async def test_of_many_who_ask_at_once_one_writes_or_all_read(rig: Rig, read_only: bool) -> None:
    await make(rig)
    asked = [create(rig, {"name": "data", "read_only": read_only}) for _ in range(10)]
    got = [answer.status_code for answer in await asyncio.gather(*asked)]
    assert sorted(set(got)) == ([201] if read_only else [201, 409])
    assert got.count(201) == (10 if read_only else 1)
    assert len(rig.host.machines) == got.count(201)


async def test_a_volume_that_is_deleted_and_asked_for_at_once_is_had_or_gone(rig: Rig) -> None:
    await make(rig)
    deleted, *created = await asyncio.gather(
        rig.http.delete("/v1/volumes/data"), *(create(rig, {"name": "data", "read_only": True}) for _ in range(5))
    )
    got = [answer.status_code for answer in created]
    assert (deleted.status_code, set(got)) in ((204, {404}), (409, {201}))
    assert len(rig.host.volumes.files) == (1 if deleted.status_code == 409 else 0)


async def test_the_same_request_at_once_and_later_is_served_once(rig: Rig) -> None:
    await make(rig)
    answers = await asyncio.gather(*(create(rig, {"name": "data"}, key="k") for _ in range(5)))
    answers.append(await create(rig, {"name": "data"}, key="k"))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == len(rig.host.machines) == 1


@pytest.mark.parametrize(
    ("volumes", "status", "said"),
    [
        ([{"name": "other"}], 404, "'other'"),
        ([{"name": "data"}, {"name": "data", "path": "/b"}], 400, "twice"),
        ([{"name": "data", "path": "/b"}, {"name": "more", "path": "/b/c"}], 400, "beside each other"),
        ([{"name": "data", "path": "data"}], 400, "absolute"),
        ([{"name": "data", "path": "/x/../proc/1"}], 400, "/proc/1"),
        ([{"name": "data", "path": "/"}], 400, "system"),
        ([{"name": "data", "path": "/run/torpor"}], 400, "system"),
        ([{"name": "data", "path": "/a\0b"}], 400, "path"),
        ([{"name": "data", "read_only": "yes"}], 400, "read_only"),
        ([{"path": "/data"}], 400, "name"),
        ([{"name": "data"}] * 17, 400, "volumes"),
        ("data", 400, "volumes"),
    ],
)
async def test_volumes_that_cannot_be_had_are_refused_and_nothing_is_left(
    rig: Rig, volumes: Any, status: int, said: str
) -> None:
    await make(rig)
    await make(rig, "more")
    answer = await rig.http.post("/v1/sandboxes", json={"volumes": volumes})
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]
    assert (rig.host.machines, await rig.store.living()) == ({}, [])


async def test_a_create_that_failed_leaves_the_volume_to_others(rig: Rig) -> None:
    await make(rig)
    rig.host.fail("restore", RestoreFailed("the guest did not come up"))
    refused(await create(rig, {"name": "data"}), 500, "restore_failed")
    assert await holders(rig) == []
    assert (await create(rig, {"name": "data"})).status_code == 201


async def test_a_volume_whose_file_is_missing_is_told(rig: Rig) -> None:
    made = (await make(rig)).json()
    rig.host.volumes.files.pop(made["id"])
    assert "not on the host" in (await rig.http.get("/v1/volumes/data")).json()["problem"]
    refused(await create(rig, {"name": "data"}), 404, "not_found", made["id"])
    assert (await rig.http.delete("/v1/volumes/data")).status_code == 204


async def test_children_and_what_comes_from_a_snapshot_have_copies(rig: Rig) -> None:
    await make(rig)
    parent = (await create(rig, {"name": "data", "path": "/data"})).json()["id"]
    child = (await rig.post(parent, "fork"))["sandbox"]
    taken = (await rig.post(parent, "snapshots"))["id"]
    restored = (await rig.http.post("/v1/sandboxes", json={"from_snapshot": taken})).json()
    for each in (child, restored):
        assert each["volumes"] == [{"name": "data", "path": "/data", "read_only": False, "is_copy": True}]
    assert await holders(rig) == [parent]
    both = {"from_snapshot": taken, "volumes": [{"name": "data"}]}
    refused(await rig.http.post("/v1/sandboxes", json=both), 400, "invalid_request", "copies")
    for each in (child["id"], restored["id"], parent):
        await rig.http.delete(f"/v1/sandboxes/{each}")
    assert (await rig.http.delete("/v1/volumes/data")).status_code == 204


async def test_another_workspace_has_volumes_of_its_own_and_sees_no_others(rig: Rig) -> None:
    await make(rig)
    headers = {"authorization": f"Bearer {await new_key(rig, 'other')}"}
    for method in ("GET", "DELETE"):
        refused(await rig.http.request(method, "/v1/volumes/data", headers=headers), 404, "not_found")
    assert (await rig.http.get("/v1/volumes", headers=headers)).json() == {"items": []}
    body = {"volumes": [{"name": "data"}]}
    refused(await rig.http.post("/v1/sandboxes", json=body, headers=headers), 404, "not_found")
    theirs = await rig.http.post("/v1/volumes", json={"name": "data", "size_mb": 32}, headers=headers)
    assert theirs.status_code == 201
    assert len(rig.host.volumes.files) == 2


async def test_a_host_without_room_makes_none(rig: Rig) -> None:
    rig.host.fail("make_volume", OutOfSpace("the host's disk is full"))
    refused(await make(rig), 507, "out_of_space")
    assert await rig.store.every_volume() == []
    assert (await make(rig)).status_code == 201


@pytest.mark.parametrize("verb", ["make_volume", "remove_volume"])
async def test_what_is_left_of_a_lost_answer_is_removed(rig: Rig, verb: str) -> None:
    if verb == "remove_volume":
        await make(rig)
    rig.host.lose_answer(verb)
    answer = await (make(rig) if verb == "make_volume" else rig.http.delete("/v1/volumes/data"))
    assert answer.status_code == 500
    refused(await create(rig, {"name": "data"}), 404, "not_found")
    assert (await rig.http.get("/v1/volumes")).json() == {"items": []}
    await reconcile(rig.plane)
    assert (rig.host.volumes.files, await rig.store.every_volume()) == ({}, [])
    assert (await make(rig)).status_code == 201


async def test_what_is_being_made_is_left_alone_by_whoever_mends(rig: Rig) -> None:
    hold = rig.host.hold("make_volume")
    making = asyncio.create_task(make(rig))
    await hold.reached.wait()
    await reconcile(rig.plane)
    hold.go.set()
    assert (await making).status_code == 201
    assert (await rig.http.get("/v1/volumes/data")).status_code == 200
