"""Checkpoints through the API: taken, listed, checked, deleted, restored as new sandboxes, gone back to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from control_rig import NOBODY, Rig, control_rig
from torpor.control.reconcile import reconcile
from torpor.errors import Busy, FreezeFailed, OutOfSpace, RestoreFailed, SnapshotCorrupt, TorporError
from torpor.model.ids import SandboxId, SnapshotId, WorkspaceId
from torpor.wire.host import Freeze

UNASKED = Freeze(id="snp-9999999999999999", kind="checkpoint")
NO_SNAPSHOT = "snp-0000000000000000"


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


@pytest.fixture
async def made(rig: Rig) -> str:
    return await rig.create(template="agent", metadata={"run": "7"}, env={"A": "b"}, name="web")


async def take(rig: Rig, made: str, key: str | None = None, **body: Any) -> Any:
    headers = {} if key is None else {"idempotency-key": key}
    return await rig.http.post(f"/v1/sandboxes/{made}/snapshots", json=body, headers=headers)


async def disown(rig: Rig, snapshot: str) -> None:
    """Let a snapshot be another workspace's."""
    record = await rig.store.snapshot(SnapshotId(snapshot))
    assert record is not None
    await rig.store.remove_snapshot(record.id)
    await rig.store.add_snapshot(replace(record, workspace=WorkspaceId("other")))


@pytest.mark.parametrize("state", ["running", "paused"])
async def test_a_checkpoint_is_described_whole_and_its_sandbox_goes_on_as_it_was(
    rig: Rig, made: str, state: str
) -> None:
    if state == "paused":
        await rig.post(made, "pause")
    answer = await take(rig, made, name="after the tests")
    assert answer.status_code == 201
    taken = answer.json()
    assert taken == (await rig.http.get(f"/v1/snapshots/{taken['id']}")).json()
    expected = {
        "sandbox_id": made,
        "kind": "checkpoint",
        "name": "after the tests",
        "template": "agent",
        "parent_id": None,
        "size_bytes": 4096,
        "pause_ms": 20.5,
        "took_ms": 50.25,
        "dirty_bytes": 8192,
        "written_bytes": 4096,
        "cpu": 1,
        "memory_mb": 512,
        "disk_gb": 8,
    }
    assert expected.items() <= taken.items()
    shown = await rig.show(made)
    assert (shown["status"], shown["last_snapshot_id"]) == (state, taken["id"])


async def test_a_checkpoint_needs_no_body(rig: Rig, made: str) -> None:
    answer = await rig.http.post(f"/v1/sandboxes/{made}/snapshots")
    assert (answer.status_code, answer.json()["name"]) == (201, None)


@pytest.mark.parametrize("body", [{"name": ""}, {"name": "x" * 129}, {"name": 3}, []])
async def test_a_bad_wish_for_a_checkpoint_takes_none(rig: Rig, made: str, body: object) -> None:
    assert (await rig.http.post(f"/v1/sandboxes/{made}/snapshots", json=body)).status_code == 400
    assert not rig.host.snapshots


async def test_a_checkpoint_of_a_sleeper_or_of_nobody_is_refused(rig: Rig, made: str) -> None:
    await rig.post(made, "hibernate")
    refused = await take(rig, made)
    assert (refused.status_code, refused.json()["details"]["needed"]) == (409, ["paused", "running"])
    assert (await take(rig, NOBODY)).status_code == 404


@pytest.mark.parametrize("error", [FreezeFailed("no answer from the guest"), OutOfSpace("full"), Busy("later")])
async def test_a_checkpoint_that_failed_leaves_everything_as_it_was(rig: Rig, made: str, error: TorporError) -> None:
    await rig.post(made, "pause")
    before = await rig.show(made)
    rig.host.fail("snapshot", error)
    assert (await take(rig, made)).json()["code"] == error.code
    assert await rig.show(made) == before
    assert (await rig.http.get("/v1/snapshots")).json()["items"] == []


async def test_a_checkpoint_whose_answer_was_lost_is_recorded_all_the_same(rig: Rig, made: str) -> None:
    rig.host.lose_answer("snapshot")
    assert (await take(rig, made)).json()["code"] == "outcome_unknown"
    (snapshot,) = rig.host.snapshots
    shown = await rig.show(made)
    assert (shown["status"], shown["last_snapshot_id"]) == ("running", snapshot)


async def test_one_key_takes_one_checkpoint(rig: Rig, made: str) -> None:
    first = await take(rig, made, "k", name="a")
    again = await take(rig, made, "k", name="a")
    assert (again.status_code, again.json()) == (201, first.json())
    assert rig.host.calls["snapshot"] == 1
    assert (await take(rig, made, "k", name="b")).json()["code"] == "conflict"
    assert (await take(rig, made, "other", name="a")).json()["id"] != first.json()["id"]
    other = await rig.create()
    assert (await take(rig, other, "k", name="a")).json()["sandbox_id"] == other
    assert (await take(rig, made, "a b")).status_code == 400


async def test_one_key_takes_one_checkpoint_also_at_once_and_after_a_lost_answer(rig: Rig, made: str) -> None:
    hold = rig.host.hold("snapshot")
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(take(rig, made, "k")) for _ in range(5)]
        await hold.reached.wait()
        hold.release()
    assert {task.result().status_code for task in asked} == {201}
    assert len({task.result().json()["id"] for task in asked}) == 1
    rig.host.lose_answer("snapshot")
    assert (await take(rig, made, "lost")).status_code == 500
    assert (await take(rig, made, "lost")).status_code == 201
    assert rig.host.calls["snapshot"] == 2


async def test_a_retry_finds_its_checkpoint_though_the_sandbox_was_lost_since(rig: Rig, made: str) -> None:
    first = await take(rig, made, "k")
    rig.host.die(made)
    await reconcile(rig.plane)
    assert (await take(rig, made, "k")).json() == first.json()


async def test_snapshots_are_listed_in_pages_newest_first_and_by_sandbox(rig: Rig, made: str) -> None:
    other = await rig.create()
    taken = [(await take(rig, owner)).json()["id"] for owner in (made, other, made, made)]
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(2):
        query = {"limit": "3"} | ({"cursor": cursor} if cursor else {})
        page = (await rig.http.get("/v1/snapshots", params=query)).json()
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert (seen, cursor) == (taken[::-1], None)
    of_one = (await rig.http.get("/v1/snapshots", params={"sandbox_id": made})).json()["items"]
    assert [item["id"] for item in of_one] == [taken[3], taken[2], taken[0]]
    await disown(rig, taken[3])
    assert taken[3] not in (await rig.http.get("/v1/snapshots")).text


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "cursor=!!", f"sandbox_id={'x' * 65}"])
async def test_a_bad_question_for_snapshots_is_refused(rig: Rig, query: str) -> None:
    assert (await rig.http.get(f"/v1/snapshots?{query}")).status_code == 400


@pytest.mark.parametrize(("method", "rest"), [("GET", ""), ("DELETE", ""), ("POST", "/verify")])
async def test_nobodys_and_others_snapshots_are_not_found(rig: Rig, made: str, method: str, rest: str) -> None:
    taken = (await take(rig, made)).json()["id"]
    await disown(rig, taken)
    for name in (NO_SNAPSHOT, "x", "%00", taken):
        answer = await rig.http.request(method, f"/v1/snapshots/{name}{rest}")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert taken in rig.host.snapshots


async def test_a_deleted_snapshot_is_gone_and_what_came_from_it_lives_on(rig: Rig, made: str) -> None:
    taken = (await take(rig, made)).json()["id"]
    child = await rig.create(from_snapshot=taken)
    answer = await rig.http.delete(f"/v1/snapshots/{taken}")
    assert (answer.status_code, answer.content) == (204, b"")
    assert not rig.host.snapshots
    assert (await rig.http.delete(f"/v1/snapshots/{taken}")).status_code == 404
    assert [(await rig.show(one))["last_snapshot_id"] for one in (made, child)] == [None, None]
    assert (await rig.show(child))["from_snapshot"] == taken
    await rig.post(child, "exec", cmd="true")


async def test_a_sleeper_wakes_though_its_snapshot_was_deleted(rig: Rig, made: str) -> None:
    await rig.write(made, "text")
    asleep = await rig.post(made, "hibernate")
    await rig.http.delete(f"/v1/snapshots/{asleep['snapshot_id']}")
    assert await rig.post(made, "hibernate") == {"status": "hibernated", "snapshot_id": None}
    assert await rig.read(made) == "text"


async def test_a_deletion_whose_answer_was_lost_can_be_asked_again_or_is_reconciled(rig: Rig, made: str) -> None:
    for again in (True, False):
        taken = (await take(rig, made)).json()["id"]
        rig.host.lose_answer("remove_snapshot")
        assert (await rig.http.delete(f"/v1/snapshots/{taken}")).status_code == 500
        if again:
            assert (await rig.http.delete(f"/v1/snapshots/{taken}")).status_code == 204
        else:
            assert await reconcile(rig.plane) == 1
        assert (await rig.http.get(f"/v1/snapshots/{taken}")).status_code == 404


async def test_a_snapshot_is_verified_and_a_flipped_bit_is_named(rig: Rig, made: str) -> None:
    taken = (await take(rig, made)).json()["id"]
    answer = await rig.http.post(f"/v1/snapshots/{taken}/verify")
    assert answer.json() == {"id": taken, "checked_bytes": 123, "took_ms": 4.5}
    rig.host.spoil(taken)
    answer = await rig.http.post(f"/v1/snapshots/{taken}/verify")
    assert (answer.status_code, answer.json()["code"]) == (500, "snapshot_corrupt")


async def test_a_restored_checkpoint_is_a_new_sandbox_with_all_that_was_in_it(rig: Rig, made: str) -> None:
    await rig.write(made, "then")
    taken = (await take(rig, made)).json()["id"]
    await rig.write(made, "later")
    await rig.http.delete("/v1/templates/agent")
    await rig.http.delete(f"/v1/sandboxes/{made}")
    for template in ("base", "nonsense"):
        child = await rig.create(from_snapshot=taken, template=template, metadata={"a": "b"}, env={"C": "d"})
        assert await rig.read(child) == "then"
        shown = await rig.show(child)
        assert (shown["template"], shown["from_snapshot"], shown["last_snapshot_id"]) == ("agent", taken, taken)
        assert (shown["metadata"], shown["parent_id"], shown["name"]) == ({"a": "b"}, None, None)
        assert rig.host.machines[child].env == {"A": "b", "C": "d"}


async def test_a_restore_keeps_to_the_snapshots_size(rig: Rig, made: str) -> None:
    taken = (await take(rig, made)).json()["id"]
    await rig.create(from_snapshot=taken, memory_mb=512)
    answer = await rig.http.post("/v1/sandboxes", json={"from_snapshot": taken, "memory_mb": 1024})
    assert (answer.status_code, answer.json()["code"]) == (400, "unsupported")
    assert "memory_mb=512" in answer.json()["error"]


async def test_nobodys_and_others_snapshots_cannot_be_restored(rig: Rig, made: str) -> None:
    taken = (await take(rig, made)).json()["id"]
    await disown(rig, taken)
    for name in (NO_SNAPSHOT, taken):
        assert (await rig.http.post("/v1/sandboxes", json={"from_snapshot": name})).status_code == 404
    assert list(rig.host.machines) == [made]


async def test_a_restore_that_failed_leaves_nothing(rig: Rig, made: str) -> None:
    taken = (await take(rig, made)).json()["id"]
    rig.host.spoil(taken)
    answer = await rig.http.post("/v1/sandboxes", json={"from_snapshot": taken})
    assert (answer.status_code, answer.json()["code"]) == (500, "snapshot_corrupt")
    assert [item["id"] for item in (await rig.http.get("/v1/sandboxes")).json()["items"]] == [made]


async def test_a_restore_with_a_key_makes_one_whatever_template_it_names(rig: Rig, made: str) -> None:
    taken = (await take(rig, made)).json()["id"]
    key = {"idempotency-key": "k"}
    answers = [
        await rig.http.post("/v1/sandboxes", json={"from_snapshot": taken, "template": template}, headers=key)
        for template in ("base", "agent")
    ]
    assert answers[0].json() == answers[1].json()


@pytest.mark.parametrize("state", ["running", "paused", "hibernated", "failed", "vanished"])
async def test_a_rollback_puts_a_sandbox_back_from_wherever_it_is(rig: Rig, made: str, state: str) -> None:
    await rig.write(made, "then")
    taken = (await take(rig, made)).json()["id"]
    await rig.write(made, "later")
    before = await rig.show(made)
    if state == "paused":
        await rig.post(made, "pause")
    elif state == "hibernated":
        await rig.post(made, "hibernate")
    elif state != "running":
        rig.host.die(made) if state == "failed" else rig.host.vanish(made)
        await reconcile(rig.plane)
        assert await rig.status(made) == "failed"
    after = await rig.post(made, "rollback", snapshot=taken)
    assert await rig.read(made) == "then"
    kept = ("id", "status", "name", "metadata", "expires_at", "ttl_seconds", "created_at", "reason")
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


async def test_a_rollback_goes_to_where_a_sandbox_came_from_too_and_to_no_others(rig: Rig, made: str) -> None:
    taken = (await take(rig, made)).json()["id"]
    child = await rig.create(from_snapshot=taken)
    await rig.post(child, "rollback", snapshot=taken)
    stranger = await rig.create()
    answer = await rig.http.post(f"/v1/sandboxes/{stranger}/rollback", json={"snapshot": taken})
    assert (answer.status_code, answer.json()["hint"]) == (409, "restore it as a new sandbox instead")
    for name in (NO_SNAPSHOT, "x"):
        answer = await rig.http.post(f"/v1/sandboxes/{made}/rollback", json={"snapshot": name})
        assert answer.status_code == 404
    assert (await rig.http.post(f"/v1/sandboxes/{NOBODY}/rollback", json={"snapshot": taken})).status_code == 404
    assert (await rig.http.post(f"/v1/sandboxes/{made}/rollback", json={})).status_code == 400


@pytest.mark.parametrize("state", ["running", "paused", "hibernated", "failed"])
@pytest.mark.parametrize("error", [SnapshotCorrupt("a bit flipped"), RestoreFailed("no answer from the guest")])
async def test_a_rollback_that_failed_leaves_the_sandbox_as_it_was(
    rig: Rig, made: str, state: str, error: TorporError
) -> None:
    taken = (await take(rig, made)).json()["id"]
    if state in ("paused", "hibernated"):
        await rig.post(made, state.removesuffix("d"))
    elif state == "failed":
        rig.host.die(made, "out of memory")
        await reconcile(rig.plane)
    before = await rig.show(made)
    rig.host.fail("rollback", error)
    answer = await rig.http.post(f"/v1/sandboxes/{made}/rollback", json={"snapshot": taken})
    assert answer.json()["code"] == error.code
    assert await rig.show(made) == before


async def test_a_rollback_whose_answer_was_lost_is_reconciled(rig: Rig, made: str) -> None:
    taken = (await take(rig, made)).json()["id"]
    await rig.post(made, "pause")
    rig.host.lose_answer("rollback")
    answer = await rig.http.post(f"/v1/sandboxes/{made}/rollback", json={"snapshot": taken})
    assert answer.json()["code"] == "outcome_unknown"
    assert await rig.status(made) == "restoring"
    await reconcile(rig.plane)
    assert await rig.status(made) == "running"


async def test_a_snapshot_nobody_recorded_is_recorded_if_its_sandbox_is_known(rig: Rig, made: str) -> None:
    taken = (await take(rig, made, name="a")).json()
    await rig.store.remove_snapshot(taken["id"])
    assert await reconcile(rig.plane) == 1
    assert (await rig.http.get(f"/v1/snapshots/{taken['id']}")).json() == taken
    stray = rig.host.begin("sbx-9999999999999999")
    rig.host.freeze(stray.facts.id, UNASKED)
    rig.host.vanish(stray.facts.id)
    for _ in range(2):
        assert await reconcile(rig.plane) == 0
    assert len(rig.host.snapshots) == 2
    assert [item["id"] for item in (await rig.http.get("/v1/snapshots")).json()["items"]] == [taken["id"]]


async def test_a_record_of_a_snapshot_that_is_gone_is_dropped(rig: Rig, made: str) -> None:
    taken = (await take(rig, made)).json()["id"]
    del rig.host.snapshots[taken]
    assert await reconcile(rig.plane) == 1
    assert (await rig.http.get(f"/v1/snapshots/{taken}")).status_code == 404
    assert (await rig.show(made))["last_snapshot_id"] is None


async def test_a_snapshot_that_cannot_be_read_keeps_its_record_and_can_be_deleted(rig: Rig, made: str) -> None:
    taken = (await take(rig, made)).json()["id"]
    rig.host.snapshots[taken] = replace(rig.host.snapshots[taken], unreadable=True)
    assert await reconcile(rig.plane) == 0
    rig.host.freeze(made, UNASKED)  # another one of this sandbox is to be mended
    assert await reconcile(rig.plane) == 1
    assert (await rig.http.get(f"/v1/snapshots/{taken}")).status_code == 200
    assert (await rig.http.delete(f"/v1/snapshots/{taken}")).status_code == 204
    assert taken not in rig.host.snapshots


async def test_snapshots_of_a_sandbox_with_a_passage_under_way_are_left_to_it(rig: Rig, made: str) -> None:
    hold = rig.host.hold("snapshot")
    rig.host.freeze(made, UNASKED)
    async with asyncio.TaskGroup() as group:
        group.create_task(take(rig, made))
        await hold.reached.wait()
        assert await reconcile(rig.plane) == 0
        hold.release()
    assert await reconcile(rig.plane) == 1
    assert len((await rig.http.get("/v1/snapshots")).json()["items"]) == 2


async def test_automatic_snapshots_of_a_sandbox_that_is_gone_are_removed(rig: Rig, made: str) -> None:
    await rig.post(made, "hibernate")
    rig.host.fail("remove_snapshot", Busy("not now"))
    await rig.http.delete(f"/v1/sandboxes/{made}")
    assert len(rig.host.snapshots) == 1
    await reconcile(rig.plane)
    assert not rig.host.snapshots
    assert await rig.store.snapshots_of(SandboxId(made)) == []
