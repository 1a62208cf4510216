"""Idempotency keys: a request to create that is sent twice makes one sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from control_rig import Rig, control_rig
from torpor.control.store.sql import open_store
from torpor.errors import NoCapacity


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


async def test_the_same_key_and_body_give_the_same_sandbox(rig: Rig) -> None:
    key = {"idempotency-key": "k-1"}
    first = await rig.http.post("/v1/sandboxes", json={"metadata": {"a": "b"}}, headers=key)
    again = await rig.http.post("/v1/sandboxes", json={"metadata": {"a": "b"}, "unknown": 1}, headers=key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert len(rig.host.machines) == 1


async def test_the_same_key_with_another_body_is_a_conflict(rig: Rig) -> None:
    key = {"idempotency-key": "k-1"}
    await rig.http.post("/v1/sandboxes", json={"metadata": {"a": "b"}}, headers=key)
    other = await rig.http.post("/v1/sandboxes", json={"metadata": {"a": "c"}}, headers=key)
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    assert len(rig.host.machines) == 1


async def test_requests_with_one_key_at_once_wait_for_the_first(rig: Rig) -> None:
    hold = rig.host.hold("restore")
    async with asyncio.TaskGroup() as group:
        asked = [
            group.create_task(rig.http.post("/v1/sandboxes", json={}, headers={"idempotency-key": "k"}))
            for _ in range(5)
        ]
        await hold.reached.wait()
        hold.release()
    assert {task.result().status_code for task in asked} == {201}
    assert len({task.result().json()["id"] for task in asked}) == 1
    assert len(rig.host.machines) == 1


async def test_a_retry_after_a_lost_answer_finds_the_sandbox(rig: Rig) -> None:
    rig.host.lose_answer("restore")
    key = {"idempotency-key": "k"}
    lost = await rig.http.post("/v1/sandboxes", json={}, headers=key)
    assert (lost.status_code, lost.json()["code"]) == (500, "outcome_unknown")
    again = await rig.http.post("/v1/sandboxes", json={}, headers=key)
    assert (again.status_code, again.json()["status"]) == (201, "running")
    assert list(rig.host.machines) == [again.json()["id"]]


async def test_a_retry_after_a_failure_tries_again(rig: Rig) -> None:
    rig.host.fail("restore", NoCapacity("full"))
    key = {"idempotency-key": "k"}
    assert (await rig.http.post("/v1/sandboxes", json={}, headers=key)).status_code == 503
    assert (await rig.http.post("/v1/sandboxes", json={}, headers=key)).status_code == 201


async def test_a_key_whose_sandbox_was_deleted_makes_no_second_one(rig: Rig) -> None:
    key = {"idempotency-key": "k"}
    made = (await rig.http.post("/v1/sandboxes", json={}, headers=key)).json()["id"]
    await rig.http.delete(f"/v1/sandboxes/{made}")
    again = await rig.http.post("/v1/sandboxes", json={}, headers=key)
    assert again.status_code == 409
    assert "deleted since" in again.json()["error"]


async def test_a_key_is_remembered_over_a_restart(tmp_path: Path) -> None:
    made = []
    for _ in range(2):
        store = await open_store(tmp_path / "torpor.db")
        async with control_rig(store) as rig:
            answer = await rig.http.post("/v1/sandboxes", json={}, headers={"idempotency-key": "k"})
            made.append(answer.json()["id"])
        await store.aclose()
    assert made[0] == made[1]


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "a\tb"])
async def test_a_key_that_is_none_is_refused(rig: Rig, key: str) -> None:
    answer = await rig.http.post("/v1/sandboxes", json={}, headers={"idempotency-key": key})
    assert answer.status_code == 400
    assert "Idempotency-Key" in answer.json()["error"]
