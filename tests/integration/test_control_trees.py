"""Fork trees through the API: children with the labels of one tree, and the one that is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from control_rig import NOBODY, Rig, control_rig
from torpor.errors import Busy, NoCapacity
from torpor.model.ids import SandboxId, WorkspaceId
from torpor.model.lifecycle import State


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


@pytest.fixture
async def made(rig: Rig) -> str:
    return await rig.create(metadata={"run": "7"}, ttl_seconds=1000)


async def fork_tree(rig: Rig, made: str, key: str | None = None, **body: Any) -> Any:
    headers = {} if key is None else {"idempotency-key": key}
    return await rig.http.post(f"/v1/sandboxes/{made}/fork-tree", json=body, headers=headers)


async def children_of(rig: Rig, made: str, count: int = 3, **metadata: str) -> list[str]:
    answer = await fork_tree(rig, made, count=count, metadata=metadata)
    assert answer.status_code == 201, answer.text
    return [child["id"] for child in answer.json()["children"]]


async def promote(rig: Rig, child: str, **body: Any) -> Any:
    return await rig.http.post(f"/v1/sandboxes/{child}/promote", json=body)


async def living(rig: Rig) -> set[str]:
    return {sandbox.id for sandbox in await rig.store.living()}


async def test_the_children_of_a_tree_are_whole_and_say_whose_they_are(rig: Rig, made: str) -> None:
    await rig.write(made, "then")
    answer = await fork_tree(rig, made, count=3, metadata={"explore": "1", "explore_ttl": "60"})
    assert answer.status_code == 201
    tree = answer.json()
    assert (tree["parent_id"], tree["errors"], len(tree["children"])) == (made, [], 3)
    for index, child in enumerate(tree["children"]):
        assert child == await rig.show(child["id"])
        assert child["metadata"] == {
            "run": "7",
            "explore": "1",
            "explore_ttl": "60",
            "fork_tree_id": tree["tree_id"],
            "fork_parent_id": made,
            "fork_tree_role": "child",
            "fork_index": str(index),
        }
        assert (child["parent_id"], child["ttl_seconds"], child["status"]) == (made, 60, "running")
        assert child["from_snapshot"] == tree["snapshot_id"]
        assert await rig.read(child["id"]) == "then"
    listed = (await rig.http.get("/v1/sandboxes", params={"metadata.fork_tree_id": tree["tree_id"]})).json()["items"]
    assert {one["id"] for one in listed} == {child["id"] for child in tree["children"]}


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"count": 1},
        {"count": 17},
        {"count": "2"},
        {"count": 2, "metadata": {"explore_ttl": "soon"}},
        {"count": 2, "metadata": {"explore_ttl": "0"}},
        {"count": 2, "metadata": {"explore_ttl": "-5"}},
        {"count": 2, "metadata": {"explore_ttl": "9" * 5000}},
        {"count": 2, "metadata": {"explore_ttl": "\u0661"}},
        {"count": 2, "metadata": {"explore_ttl": 60}},
        {"count": 2, "ttl_seconds": 5, "metadata": {"explore_ttl": "60"}},
        {"count": 2, "metadata": {f"k{number}": "" for number in range(60)}},
    ],
)
async def test_a_bad_wish_makes_no_tree(rig: Rig, made: str, body: object) -> None:
    answer = await rig.http.post(f"/v1/sandboxes/{made}/fork-tree", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert await living(rig) == {made}


async def test_if_one_child_fails_there_is_no_tree(rig: Rig, made: str) -> None:
    rig.host.fail("restore", NoCapacity("full"))
    answer = await fork_tree(rig, made, count=4)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert (await living(rig), set(rig.host.machines)) == ({made}, {made})


async def test_one_key_makes_one_tree_and_is_no_forks(rig: Rig, made: str) -> None:
    first = await fork_tree(rig, made, "k", count=2)
    again = await fork_tree(rig, made, "k", count=2)
    assert (again.status_code, again.json()) == (201, first.json())
    plain = await rig.http.post(f"/v1/sandboxes/{made}/fork", json={"count": 2}, headers={"idempotency-key": "k"})
    assert plain.status_code == 409
    assert len(await living(rig)) == 3


async def test_kinship_is_neither_inherited_nor_given(rig: Rig, made: str) -> None:
    (child, *_) = await children_of(rig, made, explore_ttl="60")
    labels = {"fork_tree_id": "tree-mine", "fork_index": "9", "mine": "yes"}
    grandchild = (await rig.post(child, "fork", metadata=labels))["sandbox"]
    assert grandchild["metadata"] == {"run": "7", "mine": "yes"}
    below = (await fork_tree(rig, child, count=2, metadata=labels)).json()
    assert {one["metadata"]["fork_tree_id"] for one in below["children"]} == {below["tree_id"]}
    assert [one["metadata"]["fork_index"] for one in below["children"]] == ["0", "1"]
    assert {one["metadata"]["fork_parent_id"] for one in below["children"]} == {child}


async def test_the_winner_has_its_parents_ttl_from_now_and_its_siblings_are_gone(rig: Rig, made: str) -> None:
    winner, *others = await children_of(rig, made, explore_ttl="60")
    neighbour = await rig.create(metadata=(await rig.show(others[0]))["metadata"])
    grandchild = (await rig.post(others[0], "fork"))["sandbox"]["id"]
    await rig.clock.jump(10)
    tree = (await rig.show(winner))["metadata"]["fork_tree_id"]
    answer = await promote(rig, winner, cleanup_siblings=True, tree_id=tree)
    assert (answer.status_code, answer.json()) == (
        200,
        {"winner": winner, "tree_id": tree, "deleted": others, "failures": {}},
    )
    shown = await rig.show(winner)
    assert (shown["ttl_seconds"], shown["expires_at"]) == (1000, "2030-01-01T00:16:50Z")
    assert (shown["metadata"]["fork_tree_role"], "explore_ttl" in shown["metadata"]) == ("winner", False)
    assert await living(rig) == {made, winner, neighbour, grandchild}
    assert rig.host.machines[winner].deadline == pytest.approx(rig.clock.now().timestamp() + 1000)
    await rig.clock.jump(120)
    assert await rig.status(winner) == "running"
    assert await rig.told(winner, "promoted") == [("promoted", {"tree_id": tree, "parent_id": made})]


async def test_without_cleaning_up_the_siblings_live_on(rig: Rig, made: str) -> None:
    winner, *others = await children_of(rig, made, explore_ttl="60")
    assert (await promote(rig, winner)).json()["deleted"] == []
    assert await living(rig) == {made, winner, *others}
    listed = (await rig.http.get("/v1/sandboxes", params={"metadata.fork_tree_role": "winner"})).json()["items"]
    assert [one["id"] for one in listed] == [winner]
    assert (await promote(rig, winner, cleanup_siblings=True)).json()["deleted"] == others


async def test_asked_again_the_rest_is_done_and_its_life_is_not_counted_anew(rig: Rig, made: str) -> None:
    winner, *_ = await children_of(rig, made)
    rig.host.fail("close", Busy("later"), times=1)
    first = (await promote(rig, winner, cleanup_siblings=True)).json()
    assert (len(first["deleted"]), len(first["failures"])) == (1, 1)
    (left,) = first["failures"]
    assert "later" in first["failures"][left]
    before = await rig.show(winner)
    await rig.clock.jump(10)
    again = (await promote(rig, winner, cleanup_siblings=True)).json()
    assert (again["deleted"], again["failures"]) == ([left], {})
    assert await rig.show(winner) == before
    assert await living(rig) == {made, winner}


async def test_a_tree_has_one_winner_however_many_are_promoted_at_once(rig: Rig, made: str) -> None:
    children = await children_of(rig, made, 4)
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(promote(rig, child, cleanup_siblings=True)) for child in children]
    answers = [task.result() for task in asked]
    assert sorted(answer.status_code for answer in answers)[0] == 200
    won = [answer.json()["winner"] for answer in answers if answer.status_code == 200]
    assert len(won) == 1
    assert {answer.status_code for answer in answers} <= {200, 404, 409}
    assert await living(rig) == {made, won[0]}


async def test_a_sibling_of_the_winner_is_refused_until_that_is_gone(rig: Rig, made: str) -> None:
    first, second = await children_of(rig, made, 2)
    assert (await promote(rig, first)).status_code == 200
    refused = await promote(rig, second, cleanup_siblings=True)
    assert (refused.status_code, first in refused.json()["error"]) == (409, True)
    await rig.http.delete(f"/v1/sandboxes/{first}")
    assert (await promote(rig, second, cleanup_siblings=True)).status_code == 200


@pytest.mark.parametrize(("parent", "own", "ttl"), [(100, "600", 600), (None, "60", None), (100, "60", 100)])
async def test_promotion_never_brings_the_end_nearer(rig: Rig, parent: int | None, own: str, ttl: int | None) -> None:
    life: dict[str, Any] = {"persistent": True} if parent is None else {"ttl_seconds": parent}
    winner, _ = await children_of(rig, await rig.create(**life), 2, explore_ttl=own)
    await promote(rig, winner)
    shown = await rig.show(winner)
    assert (shown["ttl_seconds"], shown["persistent"]) == (ttl, ttl is None)


async def test_a_parent_that_is_gone_still_says_how_long_its_winner_lives(rig: Rig, made: str) -> None:
    winner, _ = await children_of(rig, made, 2, explore_ttl="60")
    await rig.http.delete(f"/v1/sandboxes/{made}")
    assert (await promote(rig, winner)).status_code == 200
    assert (await rig.show(winner))["ttl_seconds"] == 1000


async def test_a_plain_forks_child_is_promoted_too_and_is_of_no_tree(rig: Rig, made: str) -> None:
    child = (await rig.post(made, "fork", ttl_seconds=5))["sandbox"]["id"]
    assert (await promote(rig, child, tree_id="tree-x")).status_code == 400
    done = (await promote(rig, child, cleanup_siblings=True)).json()
    assert done == {"winner": child, "tree_id": None, "deleted": [], "failures": {}}
    assert (await rig.show(child))["ttl_seconds"] == 1000


async def test_what_cannot_be_promoted_is_refused_and_nothing_is_touched(rig: Rig, made: str) -> None:
    first, second = await children_of(rig, made, 2)
    for body, status in [({"tree_id": "tree-other"}, 400), ({"cleanup_siblings": "yes"}, 400)]:
        assert (await promote(rig, first, **body)).status_code == status
    assert (await promote(rig, made, cleanup_siblings=True)).status_code == 409
    for name in (NOBODY, "x"):
        assert (await promote(rig, name)).status_code == 404
    await rig.http.delete(f"/v1/sandboxes/{second}")
    assert (await promote(rig, second)).status_code == 404
    assert await living(rig) == {made, first}


async def test_a_promotion_never_reaches_into_another_workspace(rig: Rig, made: str) -> None:
    first, second = await children_of(rig, made, 2)
    sandbox = await rig.store.get(SandboxId(second))
    assert sandbox is not None
    foreign = replace(sandbox, id=SandboxId("sbx-2222222222222222"), workspace=WorkspaceId("other"))
    await rig.store.add(foreign)
    assert (await promote(rig, foreign.id, cleanup_siblings=True)).status_code == 404
    assert (await promote(rig, first, cleanup_siblings=True)).json()["deleted"] == [second]
    kept = await rig.store.get(foreign.id)
    assert kept is not None
    assert kept.state is State.RUNNING


async def test_a_sleeping_child_is_promoted_without_being_woken(rig: Rig, made: str) -> None:
    winner, other = await children_of(rig, made, 2)
    await rig.post(winner, "hibernate")
    assert (await promote(rig, winner, cleanup_siblings=True)).json()["deleted"] == [other]
    assert await rig.status(winner) == "hibernated"


async def test_what_a_tree_used_is_found_by_its_label(rig: Rig, made: str) -> None:
    winner, *_ = await children_of(rig, made, 3)
    done = (await promote(rig, winner, cleanup_siblings=True)).json()
    used = (await rig.http.get("/v1/usage", params={"metadata.fork_tree_id": done["tree_id"]})).json()
    assert len(used["items"]) == 3
