"""What a sandbox may reach, through the API: said at birth, kept, changed, and in force whatever is lost in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from control_rig import NOBODY, Rig, control_rig
from torpor.control.reconcile import reconcile, watch
from torpor.errors import HostUnreachable, InvalidRequest, NoCapacity, TorporError, Unsupported
from torpor.model.ids import SandboxId, WorkspaceId
from torpor.model.network import NO_NETWORK
from torpor.testing.host_machines import GUEST_IP
from torpor.wire import host

ALLOWED = {"allow": ["Code.Example.com", "198.51.100.7", "*.example.org"]}
SHOWN = {"allow": ["198.51.100.7/32", "code.example.com", "*.example.org"]}
ORDERED = host.Network(mode="allow", cidrs=["198.51.100.7/32"], names=["code.example.com", "*.example.org"])
INTERNET, NONE = host.Network(mode="internet"), host.Network(mode="none")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        made.host.can = host.Capabilities(network=True)
        yield made


@pytest.fixture
async def bare() -> AsyncIterator[Rig]:
    """A server whose host has no network."""
    async with control_rig() as made:
        yield made


def in_force(rig: Rig, sandbox_id: str) -> host.Network | None:
    return rig.host.machines[sandbox_id].facts.network


async def change(rig: Rig, sandbox_id: str, network: object) -> Any:
    return await rig.http.patch(f"/v1/sandboxes/{sandbox_id}/network", json={"network": network})


@pytest.mark.parametrize(
    ("wish", "shown", "ordered"),
    [
        ({}, "internet", INTERNET),
        ({"network": None}, "internet", INTERNET),
        ({"network": "internet"}, "internet", INTERNET),
        ({"network": "none"}, "none", NONE),
        ({"network": ALLOWED}, SHOWN, ORDERED),
    ],
)
async def test_a_sandbox_may_reach_what_was_said_at_its_birth(
    rig: Rig, wish: dict[str, Any], shown: object, ordered: host.Network
) -> None:
    made = await rig.create(**wish)
    assert in_force(rig, made) == ordered
    view = await rig.show(made)
    assert (view["network"], view["guest_ip"]) == (shown, None if shown == "none" else GUEST_IP)
    state = (await rig.http.get(f"/v1/sandboxes/{made}/network")).json()
    assert state == {"network": shown, "guest_ip": view["guest_ip"], "denied": []}


async def test_without_a_network_on_the_host_there_is_none_and_asking_for_one_is_refused(bare: Rig) -> None:
    made = await bare.create()
    view = await bare.show(made)
    assert (view["network"], view["guest_ip"]) == ("none", None)
    assert (await bare.show(await bare.create(network="none")))["network"] == "none"
    for network in ("internet", ALLOWED):
        answers = [
            await bare.http.post("/v1/sandboxes", json={"network": network}),
            await bare.http.post(f"/v1/sandboxes/{made}/fork", json={"network": network}),
            await change(bare, made, network),
        ]
        for answer in answers:
            assert (answer.status_code, answer.json()["code"]) == (400, "unsupported")
            assert "no network: it is not there at all" in answer.json()["error"]
            assert "doctor" in answer.json()["hint"]
    assert (await change(bare, made, "none")).json() == {"network": "none", "guest_ip": None, "denied": []}
    assert len(await bare.store.living()) == 2
    assert bare.host.calls["set_network"] == 0


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ("moon", 'network has to be "internet", "none" or'),
        ("allow", 'network has to be "internet", "none" or'),
        (5, 'network has to be "internet", "none" or'),
        (["code.example.com"], 'network has to be "internet", "none" or'),
        ({}, 'network has to be "internet", "none" or'),
        ({"allow": "code.example.com"}, 'network has to be "internet", "none" or'),
        ({"allow": []}, "a list of 1 to 256 host names"),
        ({"allow": [1]}, "a list of 1 to 256 host names"),
        ({"allow": ["a.example"] * 257}, "a list of 1 to 256 host names"),
        ({"allow": ["10.0.0.0/8"]}, "network: '10.0.0.0/8' is private or reserved"),
        ({"allow": ["2001:db8::1"]}, "network: '2001:db8::1' is IPv6"),
        ({"allow": ["https://a.example"]}, "is a URL"),
    ],
)
async def test_a_policy_that_means_nothing_is_refused_in_a_sentence_and_changes_nothing(
    rig: Rig, network: object, said: str
) -> None:
    made = await rig.create()
    answers = [
        await rig.http.post("/v1/sandboxes", json={"network": network}),
        await rig.http.post(f"/v1/sandboxes/{made}/fork", json={"network": network}),
        await change(rig, made, network),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
        assert said in answer.json()["error"]
    assert len(await rig.store.living()) == 1
    assert in_force(rig, made) == INTERNET


async def test_a_change_without_a_policy_is_refused(rig: Rig) -> None:
    made = await rig.create()
    for body in ({}, {"network": None}):
        answer = await rig.http.patch(f"/v1/sandboxes/{made}/network", json=body)
        assert (answer.status_code, "network" in answer.json()["error"]) == (400, True)


async def test_the_policy_is_kept_through_sleep_wake_and_rollback(rig: Rig) -> None:
    made = await rig.create(network=ALLOWED)
    taken = (await rig.post(made, "snapshots"))["id"]
    await rig.post(made, "hibernate")
    rig.host.machines[made].reach(None)  # as if the host had forgotten
    await rig.post(made, "wake")
    assert in_force(rig, made) == ORDERED
    await change(rig, made, "none")
    back = await rig.post(made, "rollback", snapshot=taken)
    assert (in_force(rig, made), back["network"]) == (NONE, "none"), "the sandbox's own, not the snapshot's"


async def test_and_through_a_recovery_from_a_crash(rig: Rig) -> None:
    made = await rig.create(network=ALLOWED, on_crash="restore")
    await rig.post(made, "snapshots")
    rig.host.vanish(made)
    await reconcile(rig.plane)
    await rig.wait_status(made, "running")
    assert in_force(rig, made) == ORDERED


@pytest.mark.parametrize("state", ["running", "hibernated"])
async def test_children_may_reach_what_their_parent_may_unless_said_otherwise(rig: Rig, state: str) -> None:
    parent = await rig.create(network=ALLOWED)
    if state == "hibernated":
        await rig.post(parent, "hibernate")
    for wish, shown, ordered in (({}, SHOWN, ORDERED), ({"network": "none"}, "none", NONE)):
        for child in (await rig.post(parent, "fork", count=2, **wish))["children"]:
            assert (child["network"], in_force(rig, child["id"])) == (shown, ordered)


async def test_what_is_made_of_a_snapshot_may_reach_what_its_sandbox_might_then(rig: Rig) -> None:
    origin = await rig.create(network=ALLOWED)
    taken = await rig.post(origin, "snapshots")
    assert taken["network"] == SHOWN
    await change(rig, origin, "none")
    for wish, shown, ordered in (({}, SHOWN, ORDERED), ({"network": "internet"}, "internet", INTERNET)):
        made = await rig.create(from_snapshot=taken["id"], **wish)
        assert ((await rig.show(made))["network"], in_force(rig, made)) == (shown, ordered)


async def test_a_snapshot_made_with_a_network_comes_to_life_without_one_where_there_is_none(rig: Rig) -> None:
    taken = (await rig.post(await rig.create(network=ALLOWED), "snapshots"))["id"]
    rig.host.can = host.Capabilities(network=False)
    made = await rig.create(from_snapshot=taken)
    assert ((await rig.show(made))["network"], in_force(rig, made)) == ("none", NONE)


@pytest.mark.parametrize("state", ["running", "paused", "hibernated"])
async def test_a_change_is_in_force_at_once_and_wakes_nothing(rig: Rig, state: str) -> None:
    made = await rig.create()
    if state != "running":
        await rig.post(made, state.removesuffix("d"))
    answer = await change(rig, made, ALLOWED)
    assert (answer.status_code, answer.json()["network"]) == (200, SHOWN)
    assert ((await rig.show(made))["network"], in_force(rig, made)) == (SHOWN, ORDERED)
    assert await rig.status(made) == state
    assert await rig.told(made, "network") == [("network", {"network": SHOWN, "before": "internet"})]
    await change(rig, made, ALLOWED)
    assert len(await rig.told(made, "network")) == 1, "what changes nothing is no event"


async def test_its_address_is_shown_while_it_may_reach_something(rig: Rig) -> None:
    made = await rig.create(network="none")
    for network, address in (("internet", GUEST_IP), ("none", None), (ALLOWED, GUEST_IP)):
        assert (await change(rig, made, network)).json()["guest_ip"] == address
        assert (await rig.show(made))["guest_ip"] == address
        assert (await rig.http.get(f"/v1/sandboxes/{made}/network")).json()["guest_ip"] == address
    await rig.post(made, "hibernate")
    assert (await rig.http.get(f"/v1/sandboxes/{made}/network")).json()["guest_ip"] == GUEST_IP
    assert (await change(rig, made, "none")).json()["guest_ip"] is None
    await rig.post(made, "wake")
    assert (await rig.show(made))["guest_ip"] is None


async def test_what_was_denied_is_shown_and_of_a_sleeping_one_nothing(rig: Rig) -> None:
    made = await rig.create(network="none")
    rig.host.denied[made] = [host.Denied(reason="policy", count=3, destination="198.51.100.9 tcp/443")]
    shown = (await rig.http.get(f"/v1/sandboxes/{made}/network")).json()
    assert shown["denied"] == [{"reason": "policy", "count": 3, "destination": "198.51.100.9 tcp/443"}]
    await rig.post(made, "hibernate")
    assert (await rig.http.get(f"/v1/sandboxes/{made}/network")).json()["denied"] == []
    assert await rig.status(made) == "hibernated"


@pytest.mark.parametrize("loss", ["unreachable", "lost"])
async def test_a_change_that_may_not_have_reached_the_host_is_told_as_unknown_and_comes_into_force(
    rig: Rig, loss: str
) -> None:
    made = await rig.create()
    if loss == "lost":
        rig.host.lose_answer("set_network")
    else:
        rig.host.fail("set_network", HostUnreachable("away"))
    answer = await change(rig, made, "none")
    assert (answer.status_code, answer.json()["code"]) == (500, "outcome_unknown")
    assert "recorded" in answer.json()["error"]
    assert (await rig.show(made))["network"] == "none"
    hold = rig.host.hold("list")
    async with rig.working(watch(rig.plane, 2.0)):
        await hold.reached.wait()  # the watcher was called, and has not looked yet
        hold.release()
        await rig.clock.wait_sleepers(1)
    assert in_force(rig, made) == NONE


@pytest.mark.parametrize("state", ["running", "paused", "hibernated"])
async def test_a_crash_between_record_and_host_is_mended_by_the_reconciler(rig: Rig, state: str) -> None:
    made = await rig.create()
    if state != "running":
        await rig.post(made, state.removesuffix("d"))
    sandbox = await rig.store.get(SandboxId(made))
    assert sandbox is not None
    await rig.store.set_network(sandbox.id, NO_NETWORK, None)
    assert await reconcile(rig.plane) == 1
    assert (in_force(rig, made), await rig.status(made)) == (NONE, state)
    assert await reconcile(rig.plane) == 0


@pytest.mark.parametrize("error", [InvalidRequest("too many names"), Unsupported("not this one")])
async def test_a_change_that_the_host_refuses_leaves_it_as_it_was(rig: Rig, error: TorporError) -> None:
    made = await rig.create()
    rig.host.fail("set_network", error)
    answer = await change(rig, made, ALLOWED)
    assert (answer.status_code, answer.json()["error"]) == (400, error.message)
    assert ((await rig.show(made))["network"], in_force(rig, made)) == ("internet", INTERNET)
    assert await rig.told(made, "network") == []
    assert await reconcile(rig.plane) == 0


async def test_a_change_waits_for_the_passage_that_is_under_way(rig: Rig) -> None:
    made = await rig.create()
    hold = rig.host.hold("hibernate")
    async with asyncio.TaskGroup() as group:
        sleeping = group.create_task(rig.post(made, "hibernate"))
        await hold.reached.wait()
        changing = group.create_task(change(rig, made, "none"))
        await asyncio.sleep(0.01)
        assert rig.host.calls["set_network"] == 0
        hold.release()
    assert (sleeping.result()["status"], changing.result().status_code) == ("hibernated", 200)
    assert in_force(rig, made) == NONE


async def test_a_machine_that_died_unnoticed_is_found_out(rig: Rig) -> None:
    made = await rig.create()
    rig.host.die(made)
    assert (await change(rig, made, "none")).status_code == 200
    assert (await rig.http.get(f"/v1/sandboxes/{made}/network")).json()["denied"] == []
    await reconcile(rig.plane)
    lost = await change(rig, made, "internet")
    assert (lost.status_code, lost.json()["code"]) == (410, "sandbox_lost")
    assert (await rig.http.get(f"/v1/sandboxes/{made}/network")).json()["network"] == "none"


async def test_a_create_without_room_makes_nothing_and_a_deleted_or_foreign_one_is_not_found(rig: Rig) -> None:
    rig.host.fail("restore", NoCapacity("full"))
    assert (await rig.http.post("/v1/sandboxes", json={"network": ALLOWED})).status_code == 503
    gone = await rig.create()
    await rig.http.delete(f"/v1/sandboxes/{gone}")
    foreign = await rig.create()
    sandbox = await rig.store.get(SandboxId(foreign))
    assert sandbox is not None
    theirs = replace(sandbox, id=SandboxId("sbx-2222222222222222"), workspace=WorkspaceId("theirs"))
    await rig.store.add(theirs)
    for name in (gone, NOBODY, theirs.id):
        assert (await change(rig, name, "none")).status_code == 404
        assert (await rig.http.get(f"/v1/sandboxes/{name}/network")).status_code == 404
