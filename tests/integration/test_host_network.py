"""A sandbox's slot and policy through its whole life, on a fake VMM and a fake network."""

from __future__ import annotations

from pathlib import Path

import pytest

from frozen_rig import order, take
from host_rig import BASE, HostRig, new_rig
from torpor.errors import Failed, RestoreFailed, TorporError, Unsupported
from torpor.host.flow.create import Source, create
from torpor.host.flow.delete import delete
from torpor.host.flow.hibernate import hibernate
from torpor.host.flow.network import denied, set_network
from torpor.host.flow.rollback import Changes, rollback
from torpor.host.flow.wake import wake
from torpor.host.live import Incarnation
from torpor.host.network_notes import EGRESS, read_egress
from torpor.model.ids import SandboxId, new_sandbox_id
from torpor.model.network import NO_NETWORK, Egress, Mode
from torpor.model.snapshot import Kind
from torpor.network.contract import Denied
from torpor.network.fake import FakeSlot

ALLOW = Egress(Mode.ALLOW, ("20.0.0.0/24",), ("example.com",))
INTERNET = Egress()


@pytest.fixture
async def rig(tmp_path: Path) -> HostRig:
    rig = new_rig(tmp_path)
    await rig.bake()
    return rig


async def made(rig: HostRig, egress: Egress = INTERNET) -> Incarnation:
    """Make a sandbox."""
    return await create(rig.host, new_sandbox_id(), Source(template=BASE, egress=egress))


def slot_of(rig: HostRig, sandbox: SandboxId) -> FakeSlot:
    """Return the slot of a sandbox that lives, which is the one that its machine is connected to."""
    incarnation = rig.host.live.get(sandbox)
    slot = rig.network.slots[incarnation.slot.name]
    (machine,) = [each for each in rig.driver.running if each.place.name == sandbox]
    assert machine.tap is None or machine.tap == slot.taps[-1]
    return slot


async def test_a_sandbox_has_a_slot_of_its_own_with_its_policy_and_an_open_gate(rig: HostRig) -> None:
    one, other = await made(rig, ALLOW), await made(rig)
    slots = [slot_of(rig, each.id) for each in (one, other)]
    assert [slot.egress for slot in slots] == [ALLOW, INTERNET]
    assert all(slot.gate for slot in slots)
    assert slots[0].name != slots[1].name
    assert read_egress(one.place.folder) == ALLOW
    await delete(rig.host, one.id)
    assert list(rig.network.slots) == [slots[1].name]
    await delete(rig.host, other.id)
    assert rig.left == []


async def test_sleep_gives_the_slot_up_and_wake_takes_another_with_the_same_policy(rig: HostRig) -> None:
    one = await made(rig, ALLOW)
    before = slot_of(rig, one.id).name
    await hibernate(rig.host, one.id, order(Kind.HIBERNATION))
    assert rig.network.slots == {}
    await wake(rig.host, one.id)
    after = slot_of(rig, one.id)
    assert (after.egress, after.gate) == (ALLOW, True)
    assert after.name != before


async def test_a_policy_set_while_it_sleeps_is_in_force_from_the_wake_on(rig: HostRig) -> None:
    one = await made(rig, ALLOW)
    await hibernate(rig.host, one.id, order(Kind.HIBERNATION))
    await set_network(rig.host, one.id, NO_NETWORK)
    assert await denied(rig.host, one.id) == []
    again = await rig.killed()
    await wake(again.host, one.id)
    assert slot_of(again, one.id).egress == NO_NETWORK
    await hibernate(again.host, one.id, order(Kind.HIBERNATION))
    await wake(again.host, one.id, INTERNET)
    assert slot_of(again, one.id).egress == INTERNET


async def test_a_policy_is_changed_on_a_living_sandbox_and_what_was_denied_is_told(rig: HostRig) -> None:
    one = await made(rig)
    await set_network(rig.host, one.id, ALLOW)
    slot = slot_of(rig, one.id)
    assert (slot.egress, read_egress(one.place.folder)) == (ALLOW, ALLOW)
    slot.counted.append(Denied("private", 3))
    assert await denied(rig.host, one.id) == [Denied("private", 3)]


async def test_a_change_that_fails_leaves_what_was_in_force(rig: HostRig) -> None:
    one = await made(rig, ALLOW)
    rig.network.failures["change"] = Failed("the firewall said no")
    with pytest.raises(Failed, match="said no"):
        await set_network(rig.host, one.id, INTERNET)
    assert (slot_of(rig, one.id).egress, one.egress, read_egress(one.place.folder)) == (ALLOW, ALLOW, ALLOW)


@pytest.mark.parametrize("step", ["take", "open_tap", "change", "open_gate"])
@pytest.mark.parametrize("error", [RestoreFailed("no slot"), Failed("no rules")])
async def test_a_network_that_fails_a_create_leaves_nothing(rig: HostRig, step: str, error: TorporError) -> None:
    rig.network.failures[step] = error
    with pytest.raises(Failed, match=error.message):
        await made(rig, ALLOW)
    assert rig.left == []


async def test_a_network_that_fails_a_wake_leaves_it_asleep(rig: HostRig) -> None:
    one = await made(rig, ALLOW)
    await hibernate(rig.host, one.id, order(Kind.HIBERNATION))
    for step in ("take", "open_tap", "open_gate"):
        rig.network.failures[step] = RestoreFailed("no way")
        with pytest.raises(RestoreFailed, match="no way"):
            await wake(rig.host, one.id)
        assert rig.state_of(one.id) == "asleep"
        assert rig.network.slots == {}
    await wake(rig.host, one.id)
    assert slot_of(rig, one.id).egress == ALLOW


async def test_a_rollback_keeps_the_policy_unless_another_is_given(rig: HostRig) -> None:
    one = await made(rig, ALLOW)
    checkpoint = await take(rig, one.id)
    await set_network(rig.host, one.id, INTERNET)
    await rollback(rig.host, one.id, checkpoint)
    assert slot_of(rig, one.id).egress == INTERNET
    await rollback(rig.host, one.id, checkpoint, Changes(egress=NO_NETWORK))
    assert slot_of(rig, one.id).egress == NO_NETWORK
    assert len(rig.network.slots) == 1


async def test_a_machine_that_outlives_its_server_keeps_its_slot_and_the_rest_is_swept(rig: HostRig) -> None:
    one = await made(rig, ALLOW)
    name = slot_of(rig, one.id).name
    await rig.network.take()
    again = await rig.killed()
    assert list(rig.network.slots) == [name]
    assert slot_of(again, one.id).egress == ALLOW
    await delete(again.host, one.id)
    assert again.left == []


async def test_slots_of_machines_that_died_with_their_server_are_swept(rig: HostRig) -> None:
    await made(rig)
    again = await rig.killed(machines_die=True)
    assert again.network.slots == {}


async def test_a_machine_out_of_reach_keeps_its_slot_until_it_is_deleted(rig: HostRig) -> None:
    one = await made(rig, ALLOW)
    name = slot_of(rig, one.id).name
    rig.network.failures["adopt"] = RestoreFailed("the kernel said no")
    again = await rig.killed()
    assert [each.id for each in again.host.live.out_of_reach()] == [one.id]
    assert list(again.network.slots) == [name]
    await delete(again.host, one.id)
    assert again.left == []


async def test_a_policy_that_cannot_be_read_lets_nothing_through(rig: HostRig) -> None:
    one = await made(rig)
    (one.place.folder / EGRESS).write_text("{}")
    again = await rig.killed()
    assert slot_of(again, one.id).egress == NO_NETWORK


async def test_a_host_without_a_network_refuses_what_would_need_one_and_makes_the_rest(rig: HostRig) -> None:
    rig.network.trouble = "the cable is cut"
    with pytest.raises(Unsupported, match="the cable is cut"):
        await made(rig)
    assert (await made(rig, NO_NETWORK)).machine.alive


async def test_over_http_the_network_is_told_and_changed(rig: HostRig) -> None:
    one = await made(rig, NO_NETWORK)
    url = f"/host/v1/incarnations/{one.id}/network"
    async with rig.client() as client:
        assert (await client.get("/host/v1/capabilities")).json() == {"network": True, "network_trouble": None}
        told = (await client.get(url)).json()
        assert told["policy"] == {"mode": "none", "cidrs": [], "names": []}
        assert told["guest_ip"] is None
        policy = {"mode": "allow", "cidrs": ["20.0.0.0/24"], "names": ["example.com"]}
        assert (await client.put(url, json=policy)).status_code == 204
        told = (await client.get(url)).json()
        assert (told["policy"], told["guest_ip"]) == (policy, "10.113.111.2")
        (listed,) = (await client.get("/host/v1/incarnations")).json()["items"]
        assert (listed["network"], listed["guest_ip"]) == (policy, "10.113.111.2")
        for wrong in ({"mode": "allow"}, {"mode": "allow", "names": ["; flush ruleset"]}, {"mode": "all"}):
            assert (await client.put(url, json=wrong)).status_code == 400
        assert (await client.put(url.replace(one.id, new_sandbox_id()), json=policy)).status_code == 404
