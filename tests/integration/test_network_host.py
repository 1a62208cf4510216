"""What is changed on the host for the network of sandboxes, and that it is as it was afterwards."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from outside_world import HOST, PORT, World, outside_world, run
from slots_rig import SERVERS, allowing, guest_in, meanwhile, network_in, resolved
from torpor.errors import NoCapacity
from torpor.network import netns, outside
from torpor.network.config import NetworkConfig
from torpor.network.slots import network_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")

PUBLIC, OTHER = "20.0.0.1", "20.0.0.2"
HEARD = f"hello {HOST}"
FORWARDING = Path("/proc/sys/net/ipv4/conf/uplink/forwarding")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with outside_world() as world:
        yield world


async def test_forwarding_is_switched_off_again_by_the_last_server(world: World, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    async with network_in(one):
        assert FORWARDING.read_text() == "1\n"
        async with network_in(other) as network, guest_in(network) as (_, guest):
            assert await meanwhile(guest.call, PUBLIC, PORT) == HEARD
        assert FORWARDING.read_text() == "1\n"
    assert FORWARDING.read_text() == "0\n"
    assert run("nft", "list", "tables") == ""


async def test_a_host_that_forwards_already_is_left_as_it_is(world: World, tmp_path: Path) -> None:
    whole = Path("/proc/sys/net/ipv4/ip_forward")
    whole.write_text("1")
    try:
        async with network_in(tmp_path) as network, guest_in(network) as (_, guest):
            assert await meanwhile(guest.call, PUBLIC, PORT) == HEARD
            assert outside.GUARD not in run("nft", "list", "tables")
        assert FORWARDING.read_text() == "1\n"
    finally:
        whole.write_text("0")


async def test_a_guard_lets_nobody_else_use_this_host_as_a_router(world: World, tmp_path: Path) -> None:
    async with network_in(tmp_path) as network, guest_in(network) as (_, guest):
        netns.within(world.name, lambda: _send_through_host("22.0.0.1"))
        assert await meanwhile(guest.call, PUBLIC, PORT) == HEARD
        assert "22.0.0.1" not in world.destinations()
        run("nft", f"delete table inet {outside.GUARD}")
        netns.within(world.name, lambda: _send_through_host("22.0.0.2"))
        assert await meanwhile(guest.call, OTHER, PORT) == HEARD
        assert "22.0.0.2" in world.destinations()  # so that is what the guard has held back before
        FORWARDING.write_text("0")


def _send_through_host(target: str) -> None:
    """Send a packet to the host that is for somebody else, as a neighbour would who takes it for a router."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
        head = bytes.fromhex("4500001c000100004011") + bytes(2) + socket.inet_aton("21.0.0.1")
        sock.sendto(head + socket.inet_aton(target) + bytes(8), (HOST, 0))


async def test_a_range_that_the_host_uses_is_refused_by_name(world: World, tmp_path: Path) -> None:
    run("ip", "route", "add", "10.213.5.0/24", "via", "11.0.0.1")
    try:
        async with network_of(tmp_path, NetworkConfig()) as network:
            assert "10.213.5.0/24" in network.trouble
            assert "TORPOR_NETWORK_RANGE" in network.trouble
            slot = await network.take()
            assert (slot.name, slot.open_tap()) == ("", None)
    finally:
        run("ip", "route", "delete", "10.213.5.0/24")


async def test_switched_off_cuts_off_what_an_earlier_server_had_connected(world: World, tmp_path: Path) -> None:
    async with network_in(tmp_path) as network:
        slot = await network.take()
        slot.open_gate()
        await slot.leave()
    assert slot.name in netns.names("torpor-")
    async with network_of(tmp_path, NetworkConfig(use="off")) as network:
        assert "TORPOR_NETWORK" in network.trouble
        assert slot.name not in netns.names("torpor-")
    assert run("nft", "list", "ruleset") == ""


async def test_what_the_operator_has_opened_is_reached_and_the_rest_is_not(world: World, tmp_path: Path) -> None:
    config = NetworkConfig(name_servers=SERVERS, private=(IPv4Network("10.5.0.0/16"),))
    async with network_in(tmp_path, config) as network, guest_in(network) as (slot, guest):
        assert await meanwhile(guest.call, "10.5.1.1", PORT) == HEARD
        assert await meanwhile(guest.call, "10.6.1.1", PORT) == "refused"
        world.names["mirror.example.com"] = ["10.5.2.2"]
        await slot.change(allowing("mirror.example.com"))
        assert await meanwhile(guest.call, "10.5.2.2", PORT) == "refused"
        assert await resolved(guest, "mirror.example.com") == ["10.5.2.2"]
        assert await meanwhile(guest.call, "10.5.2.2", PORT) == HEARD


async def test_a_range_that_is_used_up_is_told_as_a_lack_of_room(world: World, tmp_path: Path) -> None:
    config = NetworkConfig(name_servers=SERVERS, range=IPv4Network("10.213.0.0/28"), ready=0)
    async with network_in(tmp_path, config) as network:
        slots = [await network.take() for _ in range(4)]
        with pytest.raises(NoCapacity, match=r"10\.213\.0\.0/28"):
            await network.take()
        await slots.pop().aclose()
        await network.settled()
        slots.append(await network.take())
        for slot in slots:
            await slot.aclose()
