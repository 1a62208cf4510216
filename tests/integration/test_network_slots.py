"""What passes a slot's firewall and the host's, with network namespaces in the places of guests."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guest_wire import guest_on
from outside_world import HOST, PORT, World, outside_world, run
from slots_rig import SERVERS, allowing, guest_in, meanwhile, network_in, resolved
from torpor.model.network import NO_NETWORK, Egress
from torpor.network import netns
from torpor.network.addresses import GATEWAY_MAC, GUEST_MAC
from torpor.network.config import NetworkConfig
from torpor.network.slots import digest_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")

PUBLIC, OTHER, FAR, UNHEARD = "20.0.0.1", "20.0.0.2", "20.0.9.9", "20.0.6.6"
# What no packet is to arrive for: late ones of an earlier test are for public addresses.
NEVER = {"192.168.1.1", "169.254.169.254", "10.0.0.1", "100.64.0.1"}
HEARD = f"hello {HOST}"
FORWARDING = Path("/proc/sys/net/ipv4/conf/uplink/forwarding")
# Passes everything on, as a slot would whose rules were all lost.
OPEN = 'flush ruleset; table ip t { chain p { type nat hook postrouting priority 100; oifname "up0" masquerade; }; }'


# Takes three slots, opens their gates, tells of them, and waits to be killed.
THREE_SLOTS = """
import asyncio, sys
from pathlib import Path
from torpor.network.config import NetworkConfig
from torpor.network.slots import network_of
async def main():
    async with network_of(Path(sys.argv[1]), NetworkConfig()) as network:
        slots = [await network.take() for _ in range(3)]
        for slot in slots:
            slot.open_gate()
        print(*(slot.name for slot in slots), slots[0].open_tap(), flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def whole_world() -> Iterator[World]:
    with outside_world() as world:
        yield world


@pytest.fixture
def world(whole_world: World) -> World:
    whole_world.names.clear()
    for seen in (whole_world.seen, whole_world.asked, whole_world.others):
        seen.clear()
    return whole_world


async def test_nothing_passes_before_the_gate_is_open(world: World, tmp_path: Path) -> None:
    async with network_in(tmp_path) as network:
        slot = await network.take()
        tap = slot.open_tap()
        assert tap is not None
        os.set_blocking(tap, True)
        with pytest.raises(OSError, match="Input/output error"):  # the tap is down
            os.write(tap, bytes(60))
        os.close(tap)
        await slot.aclose()


async def test_two_sandboxes_do_not_reach_each_other_nor_the_host(world: World, tmp_path: Path) -> None:
    async with network_in(tmp_path) as network, guest_in(network) as (_, one), guest_in(network) as (slot, other):
        assert await meanwhile(one.call, PUBLIC, PORT) == HEARD
        with other.do(lambda: socket.create_server(("0.0.0.0", PORT))), socket.create_server(("0.0.0.0", PORT)):
            theirs = netns.within(slot.name, lambda: run("ip", "-4", "-br", "address", "show", "up0"))
            address = theirs.split()[-1].partition("/")[0]
            gateway = address.rpartition(".")[0] + f".{int(address.rpartition('.')[2]) - 1}"
            for target in (address, gateway, HOST, "10.113.111.1"):
                assert await meanwhile(one.call, target, PORT) == "refused"
    assert not world.destinations() & NEVER


async def test_the_host_s_firewall_holds_alone(world: World, tmp_path: Path) -> None:
    async with network_in(tmp_path) as network, guest_in(network) as (slot, guest), guest_in(network) as (other, _):
        netns.within(slot.name, lambda: run("nft", OPEN))
        assert await meanwhile(guest.call, PUBLIC, PORT) == HEARD
        theirs = netns.within(other.name, lambda: run("ip", "-4", "-br", "address", "show", "up0")).split()[-1]
        with socket.create_server(("0.0.0.0", PORT)):
            for target in (theirs.partition("/")[0], HOST, "192.168.1.1", "169.254.169.254", "10.0.0.1"):
                assert guest.call(target, PORT, patience_s=0.5) == "silent"
    assert not world.destinations() & NEVER


async def test_the_slot_s_firewall_holds_alone(world: World, tmp_path: Path) -> None:
    async with network_in(tmp_path) as network, guest_in(network) as (_, guest):
        table = f"torpor-{digest_of(tmp_path)}"
        run("nft", f"flush chain inet {table} forward; flush chain inet {table} input; delete table inet torpor-guard")
        with socket.create_server(("0.0.0.0", PORT)):
            for target in (HOST, "192.168.1.1", "169.254.169.254", "10.0.0.1", "100.64.0.1"):
                assert await meanwhile(guest.call, target, PORT) == "refused"
        assert await meanwhile(guest.call, PUBLIC, PORT) == HEARD
        FORWARDING.write_text("0")
    assert not world.destinations() & NEVER


async def test_frames_with_other_senders_are_dropped_and_counted(world: World, tmp_path: Path) -> None:
    mine, theirs = (bytes.fromhex(mac.replace(":", "")) for mac in (GUEST_MAC, GATEWAY_MAC))
    rest = bytes.fromhex("4500001c000100004011") + bytes(2)
    udp = bytes.fromhex("115c1f90000800000000")
    async with network_in(tmp_path) as network, guest_in(network) as (slot, guest):
        for source in ("1.2.3.4", "10.213.0.1", HOST):
            ends = socket.inet_aton(source) + socket.inet_aton(UNHEARD)
            guest.send_frame(theirs + mine + b"\x08\x00" + rest + ends + udp)
        guest.send_frame(
            theirs
            + b"\x06torpo"
            + b"\x08\x00"
            + rest
            + socket.inet_aton("10.113.111.2")
            + socket.inet_aton(UNHEARD)
            + udp
        )
        guest.send_frame(theirs + mine + b"\x86\xdd" + bytes(60))
        guest.send_frame(theirs + mine + b"\x88\xcc" + bytes(60))
        assert await meanwhile(guest.call, OTHER, PORT) == HEARD
        counted = {each.reason: each.count for each in await slot.denied() if each.destination is None}
    assert counted["spoofed-address"] == 3
    assert counted["spoofed-mac"] == 1
    assert counted["other-protocol"] == 1
    assert counted["ipv6"] >= 1
    assert UNHEARD not in world.destinations()


async def test_denied_destinations_are_told(world: World, tmp_path: Path) -> None:
    async with network_in(tmp_path) as network, guest_in(network, allowing("20.0.9.0/24")) as (slot, guest):
        assert await meanwhile(guest.call, FAR, PORT) == HEARD
        assert [await meanwhile(guest.call, address, 443) for address in (PUBLIC, "10.0.0.9")] == ["refused"] * 2
        denied = {(each.reason, each.destination): each.count for each in await slot.denied()}
    assert denied["destination", f"{PUBLIC} tcp/443"] == 1
    assert denied["destination", "10.0.0.9 tcp/443"] == 1
    assert denied["private", None] == 1
    assert denied["not-allowed", None] == 1


async def test_a_change_of_policy_cuts_what_is_not_allowed_and_nothing_else(world: World, tmp_path: Path) -> None:
    async with network_in(tmp_path) as network, guest_in(network) as (slot, guest):
        stays, goes = guest.connect(FAR, PORT), guest.connect(PUBLIC, PORT)
        with stays, goes:
            assert [sock.recv(100) for sock in (stays, goes)] == [f"{HEARD}\n".encode()] * 2
            await slot.change(allowing("20.0.9.0/24"))
            for sock in (stays, goes):
                sock.settimeout(1.5)
                sock.sendall(b"still there?")
            assert stays.recv(100) == b"still there?"
            with pytest.raises(OSError, match=r"timed out|No route"):
                goes.recv(100)
            await slot.change(NO_NETWORK)
            stays.sendall(b"and now?")
            with pytest.raises(OSError, match=r"timed out|No route"):
                stays.recv(100)


async def test_a_name_opens_what_it_stands_for_and_nothing_else(world: World, tmp_path: Path) -> None:
    world.names.update({"example.com": [PUBLIC], "files.example.com": [OTHER], "trap.example.com": ["10.0.0.1", HOST]})
    policy = allowing("*.example.com", "example.com")
    async with network_in(tmp_path) as network, guest_in(network, policy) as (slot, guest):
        assert await meanwhile(guest.call, PUBLIC, PORT) == "refused"
        assert await resolved(guest, "example.com") == [PUBLIC]
        assert await resolved(guest, "Example.COM") == [PUBLIC]
        assert await meanwhile(guest.call, PUBLIC, PORT) == HEARD
        assert await meanwhile(guest.call, OTHER, PORT) == "refused"
        assert await resolved(guest, "files.example.com") == [OTHER]
        assert await meanwhile(guest.call, OTHER, PORT) == HEARD
        assert await resolved(guest, "trap.example.com") == sorted(["10.0.0.1", HOST])
        assert await meanwhile(guest.call, "10.0.0.1", PORT) == "refused"
        assert await meanwhile(guest.call, HOST, PORT) == "refused"
        assert await resolved(guest, "nothing.example.com") == "NXDOMAIN"
        assert await resolved(guest, "example.org") == "REFUSED"
        assert await resolved(guest, "notexample.com") == "REFUSED"
        await slot.change(allowing("*.example.com"))
        assert [await meanwhile(guest.call, address, PORT) for address in (PUBLIC, OTHER)] == ["refused", HEARD]
    assert set(world.asked) == {"example.com", "files.example.com", "trap.example.com", "nothing.example.com"}


async def test_a_slot_that_is_taken_over_keeps_its_flows_its_names_and_its_policy(world: World, tmp_path: Path) -> None:
    world.names.update({"example.com": [PUBLIC], "other.org": [OTHER]})
    policy = allowing("example.com", "other.org")
    async with network_in(tmp_path) as network:
        slot = await network.take()
        await slot.change(policy)
        slot.open_gate()
        await slot.leave()
    guest_side = await _adopted(tmp_path, slot.name, policy)
    async with network_in(tmp_path) as network:
        await network.sweep({slot.name})
        again = await network.adopt(slot.name, policy)
        with guest_on(again) as guest:
            assert guest_side == ""
            assert await resolved(guest, "example.com") == [PUBLIC]
            with guest.connect(PUBLIC, PORT) as sock:
                assert sock.recv(100) == f"{HEARD}\n".encode()
                await again.leave()
                third = await network.adopt(slot.name, policy)
                sock.sendall(b"echo")
                sock.settimeout(5)
                assert sock.recv(100) == b"echo"
                assert await meanwhile(guest.call, PUBLIC, PORT) == HEARD
                await third.change(allowing("other.org"))
                assert await meanwhile(guest.call, PUBLIC, PORT) == "refused"
        await third.aclose()


async def _adopted(home: Path, name: str, policy: Egress) -> str:
    """Take a slot over and leave it again, as a server does that is started and stopped; return the trouble."""
    async with network_in(home) as network:
        await network.sweep({name})
        await (await network.adopt(name, policy)).leave()
        return network.trouble


async def test_connections_are_limited_at_a_time_and_in_a_second(world: World, tmp_path: Path) -> None:
    config = NetworkConfig(name_servers=SERVERS, connections=5)
    async with network_in(tmp_path, config) as network, guest_in(network) as (slot, guest):
        held = [guest.connect(PUBLIC, PORT) for _ in range(5)]
        assert await meanwhile(guest.call, PUBLIC, PORT) == "refused"
        assert await meanwhile(guest.call, OTHER, PORT) == "refused"
        assert {each.reason for each in await slot.denied()} >= {"too-many-connections"}
        for sock in held:
            sock.close()
    config = NetworkConfig(name_servers=SERVERS, new_connections=2)
    async with network_in(tmp_path, config) as network, guest_in(network) as (slot, guest):
        for _ in range(20):
            guest.ask(PUBLIC, PORT, patience_s=0.05)
        assert {each.reason for each in await slot.denied()} >= {"too-fast"}


async def test_bandwidth_is_limited_both_ways(world: World, tmp_path: Path) -> None:
    config = NetworkConfig(name_servers=SERVERS, mbit=8)
    size = 2 << 20
    async with network_in(tmp_path, config) as network, guest_in(network) as (_, guest):
        with guest.connect(PUBLIC, PORT) as sock:
            sock.recv(100)
            began = time.monotonic()
            sending = asyncio.create_task(meanwhile(sock.sendall, bytes(size)))
            got = 0
            while got < size:
                got += len(await meanwhile(sock.recv, 65536))
            await sending
            took = time.monotonic() - began
    # Eight megabits in a second are one megabyte; what is sent at once before the limit is felt comes on top.
    assert took > (size - (512 << 10)) / 1_000_000


async def test_what_a_killed_server_leaves_is_swept_but_for_what_a_process_holds(world: World, tmp_path: Path) -> None:
    first, second, third, held = await meanwhile(_killed_server, tmp_path)
    assert {first, second, third} <= set(netns.names(f"torpor-{digest_of(tmp_path)}-"))
    async with network_in(tmp_path) as network:
        await network.sweep({second})
        assert {first, second} <= set(netns.names(f"torpor-{digest_of(tmp_path)}-"))
        assert third not in netns.names("torpor-")
        os.close(held)
        await network.sweep({second})
        assert first not in netns.names("torpor-")
        await network.discard(second)


def _killed_server(home: Path) -> tuple[str, str, str, int]:
    """Start a server that takes three slots and kill it; return their names, and a descriptor of the first tap."""
    killed = subprocess.Popen([sys.executable, "-c", THREE_SLOTS, str(home)], stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    with killed.stdout:
        line = ""
        while not line.startswith("torpor-"):
            line = killed.stdout.readline()
            assert line, "the server has ended; it says why on stderr"
        first, second, third, tap = line.split()
        process = os.pidfd_open(killed.pid)
        held = _taken_from(process, int(tap))
        os.close(process)
        killed.kill()
        killed.wait()
    return first, second, third, held


def _taken_from(process: int, descriptor: int) -> int:
    """Return a descriptor of another process's, as ours (pidfd_getfd)."""
    taken: int = ctypes.CDLL(None, use_errno=True).syscall(438, process, descriptor, 0)
    assert taken >= 0
    return taken


async def test_fifty_rounds_leave_everything_as_it_was(world: World, tmp_path: Path) -> None:
    async with network_in(tmp_path) as network:
        for _ in range(50):
            slot = await network.take()
            slot.open_gate()
            await slot.aclose()
        await network.settled()
        assert len(netns.names(f"torpor-{digest_of(tmp_path)}-")) == NetworkConfig().ready
    assert netns.names(f"torpor-{digest_of(tmp_path)}-") == []
    assert run("nft", "list", "ruleset") == ""
