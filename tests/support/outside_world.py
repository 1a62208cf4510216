"""A host of its own for tests of the network, and all that is outside it: nothing that is sent can leave either.

The test's own thread is put into a network namespace whose only way out leads into another one, that owns every
address there is. So a packet to any address at all, public, private or nobody's, that gets past what is tested arrives
there, and is seen.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

from litter import RUN_VARIABLE, namespace_mark
from torpor.network import netns

# Addresses that are public, as the internet has it: the host's, its gateway's, and that of its name server.
HOST, GATEWAY, NAME_SERVER = "11.0.0.2", "11.0.0.1", "20.0.0.53"
PORT = 8080
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class World:
    """What is outside the host. It answers TCP on `PORT` at every address, UDP too, and names from `names`.

    `seen`: the destinations of all IPv4 packets that have arrived, with their sources; `other`: how many were no IPv4.
    """

    host: str
    name: str
    names: dict[str, list[str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    others: list[bytes] = field(default_factory=list)

    def destinations(self) -> set[str]:
        """Return where the packets that arrived were to go."""
        return {destination for _, destination in self.seen}

    def sources(self) -> set[str]:
        """Return whom they came from."""
        return {source for source, _ in self.seen}


def new_name() -> str:
    """Return a new name for a network namespace of this run."""
    return namespace_mark(os.environ.get(RUN_VARIABLE, "none")) + secrets.token_hex(3)


def run(*argv: str) -> str:
    """Run a program within the namespace of this thread."""
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@contextmanager
def outside_world() -> Iterator[World]:
    """Have this thread, and all that it starts, live on a host of its own while the block lasts.

    At its end that host is as it was: no link, no firewall, and it forwards nothing.
    """
    mark = new_name()
    world = World(f"{mark}-host", f"{mark}-world")
    with ExitStack() as undo:
        for name in (world.host, world.name):
            run("ip", "netns", "add", name)
            undo.callback(run, "ip", "netns", "delete", name)
        netns.within(world.host, lambda: _furnish_host(world.name))
        netns.within(world.name, _furnish_world)
        undo.enter_context(_serving(world))
        undo.enter_context(_living_in(world.host))
        yield world
        check_as_it_was()


def check_as_it_was() -> None:
    """Show that nothing is left on the host of this thread of what was made for sandboxes."""
    assert [link["ifname"] for link in json.loads(run("ip", "-j", "link", "show"))] == ["lo", "uplink"]
    assert run("nft", "list", "ruleset") == ""
    assert Path("/proc/sys/net/ipv4/conf/uplink/forwarding").read_text().strip() == "0"


def _furnish_host(world: str) -> None:
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "uplink", "type", "veth", "peer", "name", "host", "netns", world)
    run("ip", "address", "add", f"{HOST}/24", "dev", "uplink")
    run("ip", "link", "set", "uplink", "up")
    run("ip", "route", "add", "default", "via", GATEWAY)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("0")


def _furnish_world() -> None:
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", f"{GATEWAY}/24", "dev", "host")
    run("ip", "link", "set", "host", "up")
    # Every address is its own, and what is nobody's neighbour is answered by way of the host.
    run("ip", "route", "add", "local", "0.0.0.0/0", "dev", "lo", "table", "local")
    run("ip", "route", "add", "default", "via", HOST)
    for key in ("all", "host"):
        Path(f"/proc/sys/net/ipv4/conf/{key}/rp_filter").write_text("0")


@contextmanager
def _living_in(name: str) -> Iterator[None]:
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    other = os.open(netns.FOLDER / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        assert _libc.setns(other, _CLONE_NEWNET) == 0
        yield
    finally:
        assert _libc.setns(own, _CLONE_NEWNET) == 0
        os.close(own)
        os.close(other)


@contextmanager
def _serving(world: World) -> Iterator[None]:
    with ExitStack() as undo:

        def opened() -> tuple[socket.socket, ...]:
            tcp = _bound(socket.SOCK_STREAM, PORT)
            udp, names = _bound(socket.SOCK_DGRAM, PORT), _bound(socket.SOCK_DGRAM, 53)
            tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            tap.bind(("host", 0))
            return tcp, udp, names, tap

        tcp, udp, names, tap = netns.within(world.name, opened)
        works = (
            (tcp, lambda: _answer_calls(tcp)),
            (udp, lambda: _echo(udp)),
            (names, lambda: _tell_names(names, world)),
            (tap, lambda: _watch(tap, world)),
        )
        for sock, work in works:
            undo.enter_context(serving_thread(sock, work))
        yield


def _bound(kind: socket.SocketKind, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, kind)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if kind is socket.SOCK_DGRAM:
        sock.setsockopt(socket.IPPROTO_IP, 8, 1)  # IP_PKTINFO: an answer comes from the address that was asked
    sock.bind(("0.0.0.0", port))
    if kind is socket.SOCK_STREAM:
        sock.listen(64)
    return sock


@contextmanager
def serving_thread(sock: socket.socket, work: object) -> Iterator[None]:
    """Have a thread do something with a socket, again and again, until the block ends."""
    stop = threading.Event()
    sock.settimeout(0.2)

    def run_on() -> None:
        assert callable(work)
        while not stop.is_set():
            with suppress(TimeoutError, ConnectionError, OSError):
                work()

    thread = threading.Thread(target=run_on)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sock.close()


def _answer_calls(tcp: socket.socket) -> None:
    """Say who calls from where, then send back what comes, until the caller hangs up."""
    connection, caller = tcp.accept()

    def talk() -> None:
        with connection, suppress(OSError):
            connection.settimeout(30)
            connection.sendall(f"hello {caller[0]}\n".encode())
            while data := connection.recv(65536):
                connection.sendall(data)

    threading.Thread(target=talk, daemon=True).start()


def _received(udp: socket.socket) -> tuple[bytes, tuple[str, int], list[tuple[int, int, bytes]]]:
    data, told, _, sender = udp.recvmsg(4096, 128)
    at = next(value[4:8] for level, kind, value in told if (level, kind) == (socket.IPPROTO_IP, 8))
    return data, sender, [(socket.IPPROTO_IP, 8, bytes(4) + at + bytes(4))]


def _echo(udp: socket.socket) -> None:
    data, sender, at = _received(udp)
    udp.sendmsg([data], at, 0, sender)


def _tell_names(udp: socket.socket, world: World) -> None:
    data, sender, at = _received(udp)
    query = dns.message.from_wire(data)
    name = query.question[0].name.to_text(omit_final_dot=True).lower()
    world.asked.append(name)
    reply = dns.message.make_response(query, recursion_available=True)
    found = world.names.get(name)
    if found is None:
        reply.set_rcode(dns.rcode.NXDOMAIN)
    else:
        reply.answer.append(dns.rrset.from_text_list(query.question[0].name, 60, "IN", "A", found))
    udp.sendmsg([reply.to_wire()], at, 0, sender)


def _watch(tap: socket.socket, world: World) -> None:
    frame, (_, _, kind, *_) = tap.recvfrom(65536)
    if kind == 4:  # what is sent from here itself
        return
    if frame[12:14] == b"\x08\x00":
        world.seen.append((socket.inet_ntoa(frame[26:30]), socket.inet_ntoa(frame[30:34])))
    elif frame[12:14] != b"\x08\x06":
        world.others.append(frame)
