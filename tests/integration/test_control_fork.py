"""Forking through the API: living copies, all of them or none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from control_rig import NOBODY, Rig, control_rig
from torpor.control.reconcile import reconcile
from torpor.errors import Busy, FreezeFailed, NoCapacity, OutcomeUnknown, RestoreFailed, TorporError
from torpor.model.ids import SandboxId, WorkspaceId
from torpor.model.lifecycle import State
from torpor.wire.public import MAX_CHILDREN


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


@pytest.fixture
async def made(rig: Rig) -> str:
    parent = await rig.create(template="agent", metadata={"run": "7"}, env={"A": "b"}, name="web", ttl_seconds=100)
    await rig.write(parent, "then")
    return parent


async def fork(rig: Rig, made: str, key: str | None = None, **body: Any) -> Any:
    headers = {} if key is None else {"idempotency-key": key}
    return await rig.http.post(f"/v1/sandboxes/{made}/fork", json=body, headers=headers)


async def living(rig: Rig) -> set[str]:
    return {sandbox.id for sandbox in await rig.store.living()}


@pytest.mark.parametrize("state", ["running", "paused", "hibernated"])
async def test_children_begin_as_their_parent_is_and_go_their_own_ways(rig: Rig, made: str, state: str) -> None:
    if state != "running":
        await rig.post(made, state.removesuffix("d"))
    await rig.clock.jump(10)
    answer = await fork(rig, made, count=3, metadata={"run": "8", "role": "child"})
    assert answer.status_code == 201
    forked = answer.json()
    ids = [child["id"] for child in forked["children"]]
    assert (forked["sandbox"], len(set(ids)), forked["parent_id"]) == (forked["children"][0], 3, made)
    for child in forked["children"]:
        assert child == await rig.show(child["id"])
        expected = {
            "status": "running",
            "template": "agent",
            "name": None,
            "metadata": {"run": "8", "role": "child"},
            "parent_id": made,
            "from_snapshot": forked["snapshot_id"],
            "last_snapshot_id": forked["snapshot_id"],
            "ttl_seconds": 100,
            "expires_at": "2030-01-01T00:01:50Z",
            "created_at": forked["at"],
            "boot_ms": 90,
        }
        assert expected.items() <= child.items()
        assert rig.host.machines[child["id"]].env == {"A": "b"}
        assert await rig.read(child["id"]) == "then"
        await rig.write(child["id"], f"of {child['id']}")
    assert [await rig.read(one) for one in ids] == [f"of {one}" for one in ids]
    assert await rig.status(made) == state
    assert set(rig.host.snapshots) == {forked["snapshot_id"]}


async def test_a_fork_without_a_body_is_one_child(rig: Rig, made: str) -> None:
    answer = await rig.http.post(f"/v1/sandboxes/{made}/fork")
    assert (answer.status_code, len(answer.json()["children"])) == (201, 1)
    assert answer.json()["sandbox"]["metadata"] == {"run": "7"}


@pytest.mark.parametrize(
    ("parent", "body", "ttl"),
    [
        ({"ttl_seconds": 100}, {}, 100),
        ({"ttl_seconds": 100}, {"ttl_seconds": 5}, 5),
        ({"ttl_seconds": 100}, {"persistent": True}, None),
        ({"persistent": True}, {}, None),
        ({"persistent": True}, {"ttl_seconds": 5}, 5),
    ],
)
async def test_a_child_lives_as_long_as_is_asked_or_as_its_parent(
    rig: Rig, parent: dict[str, Any], body: dict[str, Any], ttl: int | None
) -> None:
    child = (await fork(rig, await rig.create(**parent), **body)).json()["sandbox"]
    assert (child["ttl_seconds"], child["persistent"]) == (ttl, ttl is None)


@pytest.mark.parametrize(
    "body",
    [
        {"count": 0},
        {"count": MAX_CHILDREN + 1},
        {"count": "2"},
        {"metadata": {"a": 1}},
        {"metadata": {f"k{number}": "" for number in range(64)}},
        {"ttl_seconds": 0},
        {"ttl_seconds": 5, "persistent": True},
        [],
    ],
)
async def test_a_bad_wish_forks_nothing(rig: Rig, made: str, body: object) -> None:
    answer = await rig.http.post(f"/v1/sandboxes/{made}/fork", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert (await living(rig), set(rig.host.machines), rig.host.snapshots) == ({made}, {made}, {})


async def test_nobodys_and_others_sandboxes_cannot_be_forked(rig: Rig, made: str) -> None:
    sandbox = await rig.store.get(SandboxId(made))
    assert sandbox is not None
    other = SandboxId("sbx-2222222222222222")
    await rig.store.add(replace(sandbox, id=other, workspace=WorkspaceId("other")))
    for name in (NOBODY, "x", other):
        assert (await fork(rig, name)).status_code == 404


@pytest.mark.parametrize("state", ["running", "paused", "hibernated"])
@pytest.mark.parametrize("error", [NoCapacity("full"), RestoreFailed("no answer"), OutcomeUnknown("lost")])
@pytest.mark.parametrize("lost", [False, True])
async def test_if_one_child_fails_none_is_left_and_the_parent_is_as_it_was(
    rig: Rig, made: str, state: str, error: TorporError, lost: bool
) -> None:
    if state != "running":
        await rig.post(made, state.removesuffix("d"))
    before, kept = await rig.show(made), set(rig.host.snapshots)
    if lost:
        rig.host.lose_answer("restore")
    else:
        rig.host.fail("restore", error)
    answer = await fork(rig, made, "k", count=4)
    assert answer.json()["code"] == ("outcome_unknown" if lost else error.code)
    assert rig.host.calls["restore"] == 5
    assert set(rig.host.machines) == {made}
    assert await rig.show(made) == before
    assert set(rig.host.snapshots) == kept
    await reconcile(rig.plane)
    assert await living(rig) == {made}
    again = await fork(rig, made, "k", count=4)
    assert (again.status_code, len(again.json()["children"])) == (201, 4)


async def test_children_that_could_not_be_closed_are_closed_by_the_reconciler(rig: Rig, made: str) -> None:
    rig.host.fail("restore", NoCapacity("full"))
    rig.host.fail("close", Busy("later"), times=2)
    assert (await fork(rig, made, count=2)).status_code == 503
    await reconcile(rig.plane)
    assert (await living(rig), set(rig.host.machines)) == ({made}, {made})


async def test_a_parent_that_cannot_be_frozen_has_no_children(rig: Rig, made: str) -> None:
    rig.host.fail("snapshot", FreezeFailed("no answer from the guest"))
    assert (await fork(rig, made, count=2)).json()["code"] == "freeze_failed"
    assert (await living(rig), set(rig.host.machines), rig.host.snapshots) == ({made}, {made}, {})
    assert await rig.status(made) == "running"


async def test_a_freeze_whose_answer_was_lost_leaves_a_parent_that_runs_and_no_children(rig: Rig, made: str) -> None:
    rig.host.lose_answer("snapshot")
    assert (await fork(rig, made, "k", count=2)).json()["code"] == "outcome_unknown"
    assert await rig.status(made) == "running"
    await reconcile(rig.plane)
    assert await living(rig) == {made}
    assert (await fork(rig, made, "k", count=2)).status_code == 201


async def test_one_key_forks_once(rig: Rig, made: str) -> None:
    first = await fork(rig, made, "k", count=3)
    again = await fork(rig, made, "k", count=3)
    assert (again.status_code, again.json()) == (201, first.json())
    assert len(rig.host.machines) == 4
    assert (await fork(rig, made, "k", count=2)).json()["code"] == "conflict"
    other = await rig.create()
    assert (await fork(rig, other, "k", count=3)).json()["code"] == "conflict"
    assert (await fork(rig, made, "a b")).status_code == 400
    await rig.http.delete(f"/v1/sandboxes/{first.json()['children'][1]['id']}")
    assert "deleted since" in (await fork(rig, made, "k", count=3)).json()["error"]


async def test_one_key_forks_once_also_at_once(rig: Rig, made: str) -> None:
    hold = rig.host.hold("restore")
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(fork(rig, made, "k", count=2)) for _ in range(4)]
        await hold.reached.wait()
        hold.release()
    assert {task.result().status_code for task in asked} == {201}
    assert len({task.result().text for task in asked}) == 1
    assert len(rig.host.machines) == 3


async def test_a_parent_that_sleeps_is_not_woken_before_its_children_are_there(rig: Rig, made: str) -> None:
    await rig.post(made, "hibernate")
    hold = rig.host.hold("restore")
    async with asyncio.TaskGroup() as group:
        group.create_task(fork(rig, made))
        await hold.reached.wait()
        waking = group.create_task(rig.post(made, "exec", cmd="echo here"))
        await asyncio.sleep(0)
        assert rig.host.calls["wake"] == 0
        hold.release()
    assert waking.result()["stdout"] == "here\n"


async def test_a_parent_that_runs_goes_on_while_its_children_come_to_life(rig: Rig, made: str) -> None:
    hold = rig.host.hold("restore")
    async with asyncio.TaskGroup() as group:
        group.create_task(fork(rig, made))
        await hold.reached.wait()
        assert (await rig.post(made, "exec", cmd="echo here"))["stdout"] == "here\n"
        assert await reconcile(rig.plane) == 0
        hold.release()


async def test_a_parent_that_falls_asleep_before_it_is_frozen_is_forked_asleep(rig: Rig, made: str) -> None:
    hold = rig.host.hold("hibernate")
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.post(made, "hibernate"))
        await hold.reached.wait()
        forking = group.create_task(fork(rig, made, count=2))
        await asyncio.sleep(0)
        hold.release()
    assert forking.result().status_code == 201
    assert (await rig.status(made), rig.host.calls["snapshot"]) == ("hibernated", 0)


async def test_of_fork_snapshots_only_the_last_is_kept(rig: Rig, made: str) -> None:
    first, last = [(await fork(rig, made)).json() for _ in range(2)]
    assert set(rig.host.snapshots) == {last["snapshot_id"]}
    assert (await rig.show(first["sandbox"]["id"]))["last_snapshot_id"] is None
    await rig.http.delete(f"/v1/sandboxes/{made}")
    assert not rig.host.snapshots
    assert await rig.read(last["sandbox"]["id"]) == "then"


async def test_a_crash_in_the_middle_leaves_no_children(rig: Rig, made: str) -> None:
    children = [child["id"] for child in (await fork(rig, made, "k", count=3)).json()["children"]]
    for child in children:
        await rig.store.move(SandboxId(child), {State.RUNNING}, State.CREATING, rig.clock.now(), {"boot_ms": None})
        rig.host.vanish(child)
    await reconcile(rig.plane)
    assert await living(rig) == {made}
    assert (await fork(rig, made, "k", count=3)).status_code == 201


async def test_sixty_four_children_come_to_life_sixteen_at_a_time(rig: Rig, made: str) -> None:
    holds = [rig.host.hold("restore") for _ in range(MAX_CHILDREN)]
    async with asyncio.TaskGroup() as group:
        forking = group.create_task(fork(rig, made, count=MAX_CHILDREN))
        for number, hold in enumerate(holds):
            await hold.reached.wait()
            assert rig.host.calls["restore"] <= number + 1 + 16
            hold.release()
    assert len(forking.result().json()["children"]) == MAX_CHILDREN
