"""What a guest reaches, and what it does not, on real guests.

The server, its sandboxes and the test live on a host of their own, whose only way out leads to a world that owns every
address there is (see tests/support/outside_world.py). So whatever gets out arrives there, and is seen there.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outside_world import HOST, NAME_SERVER, PORT, World, outside_world, run, serving_thread
from running_server import RunningServer, home_sharing_templates, serving
from torpor import Client, Process, Sandbox
from torpor.network import netns
from torpor.network.addresses import SPECIAL
from torpor.network.config import NetworkConfig
from torpor.network.slots import digest_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give sandboxes a network")

PUBLIC, OTHER = "20.0.0.1", "20.0.0.2"
# One address of each range that is not public, and those that clouds tell secrets at.
NOT_PUBLIC = sorted({*(str(network[7]) for network in SPECIAL), "169.254.169.254", "192.168.1.1", "255.255.255.255"})
HOST_PORT = 9090
READY = NetworkConfig().ready
ROUNDS = int(os.environ.get("TORPOR_TEST_ROUNDS", "50"))

# Tries to reach every target given, by TCP and by UDP, and tells what came back.
TRY = """
import json, socket, sys
def tcp(address, port):
    try:
        with socket.create_connection((address, port), 1.5) as sock:
            sock.settimeout(1.5)
            return sock.recv(200).decode() or "closed"
    except OSError as error:
        return None
def udp(address, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.3)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sock.sendto(b"echo", (address, port))
            return sock.recv(200).decode()
        except OSError:
            return None
print(json.dumps({target: tcp(*target.rsplit(":", 1)) or udp(*target.rsplit(":", 1)) for target in sys.argv[1:]}))
""".replace('*target.rsplit(":", 1)', 'target.rsplit(":", 1)[0], int(target.rsplit(":", 1)[1])')

# Sends what no guest may: frames with other senders, IPv6 by hand, other addresses of its own.
SPOOF = """
import socket, struct, fcntl
PUBLIC = socket.inet_aton("20.0.0.66")
def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    total = (total >> 16) + (total & 0xffff)
    return ~(total + (total >> 16)) & 0xffff
def packet(source, target):
    udp = struct.pack("!4H", 4444, 8080, 12, 0) + b"echo"
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0, source, target)
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + udp
mine, theirs = bytes.fromhex("06746f727002"), bytes.fromhex("06746f727001")
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
    sock.bind(("eth0", 0))
    for source in ("1.2.3.4", "10.113.111.1", "10.113.111.3", "10.213.0.1", "11.0.0.2", "127.0.0.1", "0.0.0.0"):
        sock.send(theirs + mine + b"\\x08\\x00" + packet(socket.inet_aton(source), PUBLIC))
    other = bytes.fromhex("06746f727009")
    sock.send(theirs + other + b"\\x08\\x00" + packet(socket.inet_aton("10.113.111.2"), PUBLIC))
    ends = bytes.fromhex("fe80" + 26 * "0" + "02"), bytes.fromhex("2620" + 27 * "0" + "1")
    ipv6 = struct.pack("!IHBB16s16s", 6 << 28, 8, 59, 64, *ends)
    for target in (theirs, b"\\x33\\x33\\0\\0\\0\\1", b"\\xff" * 6):
        sock.send(target + mine + b"\\x86\\xdd" + ipv6 + bytes(8))
    arp = struct.pack("!HHBBH6s4s6s4s", 1, 0x800, 6, 4, 2, mine, socket.inet_aton("10.113.111.1"), theirs, PUBLIC)
    sock.send(b"\\xff" * 6 + mine + b"\\x08\\x06" + arp)
    sock.send(theirs + mine + b"\\x81\\x00\\x00\\x01\\x08\\x00" + packet(socket.inet_aton("10.113.111.2"), PUBLIC))
print("sent")
"""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with outside_world() as world:
        world.names.update(
            {"allowed.example.com": [PUBLIC], "other.example.com": [OTHER], "inside.example.com": [HOST]}
        )
        yield world


@pytest.fixture(scope="module")
def network_server(
    world: World, template_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    home = home_sharing_templates(template_home, tmp_path_factory.mktemp("network") / "home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORPOR_NETWORK", "auto")
        patch.setenv("TORPOR_DNS", NAME_SERVER)
        with serving(home) as running:
            yield running
        assert slots_of(running) == []


def slots_of(server: RunningServer) -> list[str]:
    """Return the slots of a server."""
    return netns.names(f"torpor-{digest_of(server.home)}-")


@pytest.fixture(scope="module")
def connected(network_server: RunningServer) -> Iterator[Client]:
    with network_server.client() as client:
        yield client


@pytest.fixture(scope="module")
def host_services(world: World) -> Iterator[int]:
    """A service of the host's, on every address that it has."""
    with socket.create_server(("0.0.0.0", HOST_PORT)) as sock:
        calls: list[socket.socket] = []

        def answer() -> None:
            connection, _ = sock.accept()
            connection.sendall(b"host\n")
            calls.append(connection)

        with serving_thread(sock, answer):
            yield HOST_PORT
        for each in calls:
            each.close()


def tried(sandbox: Sandbox, *targets: str) -> dict[str, str | None]:
    """Return what a guest hears at each `ADDRESS:PORT`."""
    done = sandbox.exec(["python3", "-c", TRY, *targets], timeout_seconds=300)
    assert done.exit_code == 0, done.stderr
    heard: dict[str, str | None] = json.loads(done.stdout)
    return heard


def reached(sandbox: Sandbox, *targets: str) -> set[str]:
    """Return those `ADDRESS:PORT` at which a guest hears anything."""
    return {target for target, heard in tried(sandbox, *targets).items() if heard is not None}


class Talk:
    """A command in a guest that answers each line with one."""

    def __init__(self, process: Process) -> None:
        self._process, self._events, self._heard = process, process.events(), b""

    def next_line(self) -> str:
        """Return the next line that it says."""
        while b"\n" not in self._heard:
            self._heard += next(self._events).data
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def say(self, line: str) -> str:
        """Say a line, and return the answer."""
        self._process.write_stdin(f"{line}\n")
        return self.next_line()


def wait_until(holds: Callable[[], bool]) -> None:
    """Return when something holds; fail if it does not in time."""
    give_up = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def host_targets(server: RunningServer) -> list[str]:
    """Return every address that the host has, slots' included, with the ports of a service of its own and the API."""
    links = json.loads(run("ip", "-j", "-4", "address", "show"))
    addresses = {each["local"] for link in links for each in link["addr_info"]}
    own = {"10.113.111.1", *addresses} - {"127.0.0.1"}
    api = int(server.url.rsplit(":", 1)[1])
    return [f"{address}:{port}" for address in sorted(own) for port in (HOST_PORT, api, 22)]


def check_isolated(sandbox: Sandbox, other: Sandbox, server: RunningServer, world: World) -> None:
    """Show that a sandbox reaches what is public, and nothing else."""
    assert tried(sandbox, f"{PUBLIC}:{PORT}") == {f"{PUBLIC}:{PORT}": f"hello {HOST}\n"}
    other.exec("cd /tmp; (python3 -m http.server 8081 >/dev/null 2>&1 &)")
    world.seen.clear()
    forbidden = [*host_targets(server), *(f"{address}:{PORT}" for address in NOT_PUBLIC)]
    slots = [f"10.213.{high}.{low}:8081" for high in (0, 1) for low in (1, 2)]
    assert reached(sandbox, *forbidden, *slots, "10.113.111.1:8081") == set()
    assert world.destinations() & set(NOT_PUBLIC) == set()
    assert sandbox.exec(["python3", "-c", SPOOF]).stdout == "sent\n"
    assert sandbox.exec("python3 -c 'import socket; socket.create_connection((\"2620::1\", 80), 1)'").exit_code != 0
    assert reached(sandbox, f"{OTHER}:{PORT}") == {f"{OTHER}:{PORT}"}  # so what was sent before has arrived, or never
    assert world.sources() == {HOST}
    assert "20.0.0.66" not in world.destinations()
    assert [frame for frame in world.others if frame[12:14] == b"\x86\xdd" and b"\x26\x20" in frame] == []


@pytest.mark.usefixtures("host_services")
def test_a_guest_reaches_public_addresses_only_before_and_after_a_wake_and_in_a_fork(
    connected: Client, network_server: RunningServer, world: World
) -> None:
    with (
        Sandbox.create(client=connected, ttl_seconds=3600) as sandbox,
        Sandbox.create(client=connected, ttl_seconds=3600) as other,
    ):
        assert sandbox.network().denied == ()  # coming to life is no offence
        check_isolated(sandbox, other, network_server, world)
        reasons = {each.reason for each in sandbox.network().denied}
        assert {"private", "host", "spoofed-address", "spoofed-mac", "spoofed-arp", "ipv6", "gateway"} <= reasons
        sandbox.hibernate()
        sandbox.wake()
        check_isolated(sandbox, other, network_server, world)
        with sandbox.fork() as child:
            check_isolated(child, sandbox, network_server, world)


def test_resolv_conf_is_the_same_after_a_wake_and_a_name_resolves(connected: Client) -> None:
    resolve = "python3 -c 'import socket; print(socket.gethostbyname(\"allowed.example.com\"))'"
    with Sandbox.create(client=connected, ttl_seconds=3600) as sandbox:
        before = sandbox.exec("cat /etc/resolv.conf").stdout
        assert before == "nameserver 10.113.111.1\n"
        assert sandbox.exec(resolve).stdout == f"{PUBLIC}\n"
        sandbox.hibernate()
        assert sandbox.exec("cat /etc/resolv.conf").stdout == before
        assert sandbox.exec(resolve).stdout == f"{PUBLIC}\n"


def test_eight_forks_at_once_have_eight_taps_and_reach_their_gateway(
    connected: Client, network_server: RunningServer
) -> None:
    ping = """
import socket, struct
sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
sock.settimeout(20)
body = struct.pack("!BBHHH", 8, 0, 0, 7, 1)
sock.sendto(body[:2] + struct.pack("!H", ~sum(struct.unpack("!4H", body)) & 0xffff) + body[4:], ("10.113.111.1", 0))
print(sock.recv(100)[20])
"""
    with Sandbox.create(client=connected, ttl_seconds=3600) as sandbox:
        children = sandbox.fork(8)
        try:
            assert [child.exec(["python3", "-c", ping]).stdout for child in children] == ["0\n"] * 8
            taps = [run("ip", "-n", name, "link", "show", "tap0") for name in slots_of(network_server)]
            held = [tap for tap in taps if "LOWER_UP" in tap]
            assert len(held) == 9
        finally:
            for child in children:
                child.delete()


def test_an_allow_list_lets_names_and_networks_through_and_is_changed_while_a_connection_lives(
    connected: Client, world: World
) -> None:
    fetch = f"""
import socket, sys
sock = socket.create_connection(("allowed.example.com", {PORT}), 10)
print(sock.recv(100).decode().split()[0], flush=True)
for line in sys.stdin:
    sock.settimeout(5)
    try:
        sock.sendall(line.encode())
        print(sock.recv(100).decode().strip(), flush=True)
    except OSError:
        print("cut", flush=True)
"""
    with Sandbox.create(client=connected, ttl_seconds=3600, network=["allowed.example.com", "20.0.9.0/24"]) as sandbox:
        assert reached(sandbox, f"{PUBLIC}:{PORT}", f"{OTHER}:{PORT}", f"20.0.9.9:{PORT}") == {f"20.0.9.9:{PORT}"}
        # The answer to the question is what opens the way, and for what it was asked for only.
        assert reached(sandbox, f"allowed.example.com:{PORT}") == {f"allowed.example.com:{PORT}"}
        assert reached(sandbox, f"{PUBLIC}:{PORT}", f"{OTHER}:{PORT}") == {f"{PUBLIC}:{PORT}"}
        assert reached(sandbox, f"other.example.com:{PORT}", f"inside.example.com:{PORT}") == set()
        denied = {(each.reason, each.destination) for each in sandbox.network().denied}
        assert {("name", "other.example.com"), ("not-allowed", None)} <= denied
        assert "other.example.com" not in world.asked
        talk = Talk(sandbox.start(["python3", "-uc", fetch], stdin=True))
        assert (talk.next_line(), talk.say("one")) == ("hello", "one")
        sandbox.set_network(["allowed.example.com", "20.0.8.0/24"])
        assert talk.say("two") == "two"
        sandbox.set_network(["20.0.8.0/24"])
        assert talk.say("three") == "cut"
        sandbox.set_network("none")
        assert reached(sandbox, f"20.0.8.1:{PORT}", "10.113.111.1:53") == set()
        sandbox.set_network("internet")
        assert reached(sandbox, f"{OTHER}:{PORT}") == {f"{OTHER}:{PORT}"}


def test_a_sandbox_keeps_its_network_when_its_server_is_killed_and_has_names_again_with_the_next(
    world: World, template_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORPOR_NETWORK", "auto")
    monkeypatch.setenv("TORPOR_DNS", NAME_SERVER)
    home = home_sharing_templates(template_home, tmp_path / "home")
    loop = f"""
import socket, time
while True:
    try:
        socket.create_connection(("{OTHER}", {PORT}), 2).close()
    except OSError:
        pass
    time.sleep(0.2)
"""
    with serving(home) as running, running.client() as client:
        sandbox = Sandbox.create(client=client, ttl_seconds=3600, network=["allowed.example.com", f"{OTHER}/32"])
        assert reached(sandbox, f"allowed.example.com:{PORT}") == {f"allowed.example.com:{PORT}"}
        sandbox.start(["python3", "-c", loop])
        (held,) = [name for name in slots_of(running) if "LOWER_UP" in run("ip", "-n", name, "link", "show", "tap0")]
        running.kill()
    world.seen.clear()
    wait_until(lambda: OTHER in world.destinations())  # without any server
    with serving(home) as running, running.client() as client:
        wait_until(lambda: held in slots_of(running) and len(slots_of(running)) == 3)
        sandbox = Sandbox.connect(sandbox.id, client=client)
        targets = [f"allowed.example.com:{PORT}", f"{OTHER}:{PORT}", f"20.0.7.7:{PORT}", f"192.168.1.1:{PORT}"]
        assert reached(sandbox, *targets) == set(targets[:2])
        sandbox.delete()
        wait_until(lambda: held not in slots_of(running))


def test_rounds_of_creates_and_deletes_leave_slots_links_and_rules_as_they_were(
    connected: Client, network_server: RunningServer
) -> None:
    def there() -> tuple[int, int, str]:
        return (
            len(slots_of(network_server)),
            len(json.loads(run("ip", "-j", "link", "show"))),
            run("nft", "list", "tables"),
        )

    def one_round() -> None:
        with Sandbox.create(client=connected, ttl_seconds=600) as sandbox:
            sandbox.set_network("none")

    one_round()
    wait_until(lambda: there()[0] == READY + 1)  # those made ahead, and that of the spare
    before = there()
    for _ in range(ROUNDS):
        one_round()
    wait_until(lambda: there() == before)
