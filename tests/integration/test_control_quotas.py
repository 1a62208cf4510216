"""A workspace is held to its quotas, by whomever and however often at once it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from control_rig import Rig, control_rig
from torpor.model.capacity import GIB, MIB, Limits, Quota
from torpor.model.ids import SandboxId, WorkspaceId

QUOTA = Quota(sandboxes=3, snapshots=2)
OTHERS = SandboxId("sbx-3333333333333333")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig(quota=QUOTA) as rig:
        yield rig


async def create(rig: Rig, key: str | None = None, **body: Any) -> httpx2.Response:
    headers = {} if key is None else {"idempotency-key": key}
    return await rig.http.post("/v1/sandboxes", json=body, headers=headers)


def refused(answer: httpx2.Response, resource: str, limit: int, used: int) -> dict[str, Any]:
    """Check that an answer is the refusal of a quota, with limit, use and what to do, and return its body."""
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem["code"]) == (429, "quota_exceeded"), problem
    assert problem["details"] == {"resource": resource, "limit": limit, "used": used}
    assert problem["hint"]
    assert not problem["retryable"]
    return problem


async def test_one_sandbox_too_many_is_refused_with_limit_use_and_hint_and_makes_nothing(rig: Rig) -> None:
    made = [await rig.create() for _ in range(3)]
    problem = refused(await create(rig), "sandboxes", 3, 3)
    assert "3 of 3 sandboxes are yours, and one more is wanted" in problem["error"]
    assert set(rig.host.machines) == set(made)
    assert (await rig.http.delete(f"/v1/sandboxes/{made[0]}")).status_code == 204
    await rig.create()


async def test_sandboxes_that_sleep_or_failed_count_and_deleted_ones_and_others_do_not(rig: Rig) -> None:
    first, second = await rig.create(), await rig.create()
    sandbox = await rig.store.get(SandboxId(first))
    assert sandbox is not None
    await rig.store.add(replace(sandbox, id=OTHERS, workspace=WorkspaceId("other")))
    await rig.post(first, "hibernate")
    rig.host.die(second)
    await rig.create()
    refused(await create(rig), "sandboxes", 3, 3)
    assert (await rig.http.get("/v1/quota")).json()["sandboxes"] == {"limit": 3, "used": 3}


async def test_many_callers_at_once_get_exactly_what_is_left(rig: Rig) -> None:
    await rig.create()
    answers = await asyncio.gather(*(create(rig) for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [201] * 2 + [429] * 18
    assert len(rig.host.machines) == 3


async def test_creates_and_forks_at_once_do_not_exceed_it_together(rig: Rig) -> None:
    parent = await rig.create()
    fork = f"/v1/sandboxes/{parent}/fork"
    asked = [create(rig), rig.http.post(fork, json={"count": 2}), create(rig), rig.http.post(fork, json={"count": 2})]
    answers = await asyncio.gather(*asked)
    assert {answer.status_code for answer in answers} == {201, 429}
    assert len(rig.host.machines) == 3
    assert rig.host.room.reserved == {}


async def test_a_create_that_failed_leaves_its_place_to_another(rig: Rig) -> None:
    await rig.create(), await rig.create()
    rig.host.room.limits = Limits(machines=2)
    assert (await create(rig)).status_code == 503
    rig.host.room.limits = Limits()
    await rig.create()


async def test_a_request_sent_again_counts_once_also_at_the_limit(rig: Rig) -> None:
    await rig.create(), await rig.create()
    first = await create(rig, "k")
    again = await create(rig, "k")
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    refused(await create(rig, "other"), "sandboxes", 3, 3)


async def test_a_request_sent_several_times_at_once_gets_the_last_place_once(rig: Rig) -> None:
    await rig.create(), await rig.create()
    answers = await asyncio.gather(*(create(rig, "k") for _ in range(8)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1


async def test_a_fork_fits_whole_or_nothing_of_it_is_made_not_even_a_snapshot(rig: Rig) -> None:
    parent = await rig.create()
    answer = await rig.http.post(f"/v1/sandboxes/{parent}/fork", json={"count": 3})
    assert "3 more are wanted" in refused(answer, "sandboxes", 3, 1)["error"]
    assert (set(rig.host.machines), rig.host.snapshots, rig.host.calls["snapshot"]) == ({parent}, {}, 0)
    assert len(await rig.store.living()) == 1
    assert (await rig.http.post(f"/v1/sandboxes/{parent}/fork", json={"count": 2})).status_code == 201


async def test_snapshots_that_were_asked_for_are_bounded_and_others_are_not(rig: Rig) -> None:
    made = await rig.create()
    path = f"/v1/sandboxes/{made}/snapshots"
    first = await rig.http.post(path, json={}, headers={"idempotency-key": "k"})
    await rig.post(made, "snapshots")
    assert "2 of 2 snapshots are yours" in refused(await rig.http.post(path, json={}), "snapshots", 2, 2)["error"]
    again = await rig.http.post(path, json={}, headers={"idempotency-key": "k"})
    assert again.json()["id"] == first.json()["id"]
    await rig.post(made, "hibernate")
    await rig.post(made, "wake")
    assert (await rig.http.post(f"/v1/sandboxes/{made}/fork", json={})).status_code == 201
    assert (await rig.http.delete(f"/v1/snapshots/{first.json()['id']}")).status_code == 204
    await rig.post(made, "snapshots")


async def test_snapshots_of_many_sandboxes_at_once_do_not_exceed_the_bound(rig: Rig) -> None:
    made = [await rig.create() for _ in range(3)]
    asked = [rig.http.post(f"/v1/sandboxes/{one}/snapshots", json={}) for one in made * 3]
    answers = await asyncio.gather(*asked)
    assert sorted(answer.status_code for answer in answers) == [201] * 2 + [429] * 7
    assert len(rig.host.snapshots) == 2


async def test_memory_and_disk_are_bounded_in_all() -> None:
    async with control_rig(quota=Quota(memory_bytes=1024 * MIB, disk_bytes=100 * GIB)) as rig:
        one = await rig.show(await rig.create())
        while (answer := await create(rig)).status_code == 201:
            pass
        held = len(rig.host.machines)
        used = held * one["memory_mb"] * MIB
        assert used <= 1024 * MIB < used + one["memory_mb"] * MIB
        refused(answer, "memory", 1024 * MIB, used)
        told = (await rig.http.get("/v1/quota")).json()
        assert told["memory"] == {"limit": 1024 * MIB, "used": used}
        assert told["disk"] == {"limit": 100 * GIB, "used": held * one["disk_gb"] * GIB}
    async with control_rig(quota=Quota(disk_bytes=GIB // 2)) as rig:
        refused(await create(rig), "disk", GIB // 2, 0)


@pytest.mark.parametrize(
    ("body", "status", "code", "says"),
    [
        ({"template": "bse"}, 400, "invalid_request", "there are: agent, base"),
        ({"template": "../etc"}, 400, "invalid_request", "there are: agent, base"),
        ({"memory_mb": 1 << 40}, 400, "unsupported", "memory_mb="),
        ({"memory_mb": 0}, 400, "invalid_request", "memory_mb"),
        ({"disk_gb": 1 << 40}, 400, "unsupported", "disk_gb="),
        ({"disk_gb": -1}, 400, "invalid_request", "disk_gb"),
        ({"name": "taken"}, 409, "conflict", "'taken' exists already"),
    ],
)
async def test_what_a_sandbox_cannot_be_is_refused_with_the_reason(
    rig: Rig, body: dict[str, Any], status: int, code: str, says: str
) -> None:
    await rig.create(name="taken")
    answer = await create(rig, **body)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code)
    assert says in problem["error"]
    assert problem["hint"] or code == "invalid_request"
    assert len(rig.host.machines) == 1
