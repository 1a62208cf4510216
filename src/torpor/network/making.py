"""Making and removing slots, in the kernel. Everything here blocks, for some tens of milliseconds."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

import structlog

from torpor.errors import NoCapacity, TorporError
from torpor.model.network import Egress
from torpor.network import netns
from torpor.network.addresses import GATEWAY, GATEWAY_MAC, GUEST, GUEST_MAC, slot_network, slots_in
from torpor.network.config import NetworkConfig
from torpor.network.outside import LINKS, alone, own_addresses
from torpor.network.programs import forget_flows_from, ip, ip_told, nft, tc
from torpor.network.rules import TAP, UPLINK, slot_rules

_log = structlog.get_logger(__name__)
# Network namespaces of all servers begin so.
NAMESPACES = "torpor-"
_DNS_PORT, _BACKLOG = 53, 16
# More slots than this no host carries; their numbers have four digits in names.
_MOST = 1 << 16
_TRIES = 64
# What is sent at once before a limit of bandwidth is felt, and how long a packet waits for it.
_BURST, _LATENCY = "256kb", "50ms"
_SYSCTLS = (
    *(("ipv6/conf/all/disable_ipv6", "1"), ("ipv6/conf/default/disable_ipv6", "1")),
    *(("ipv4/conf/all/rp_filter", "1"), ("ipv4/conf/default/rp_filter", "1")),
    *(("ipv4/conf/all/accept_redirects", "0"), ("ipv4/conf/default/accept_redirects", "0")),
    *(("ipv4/conf/all/send_redirects", "0"), ("ipv4/conf/default/send_redirects", "0")),
    *(("ipv4/conf/all/accept_source_route", "0"), ("ipv4/conf/default/accept_source_route", "0")),
    ("ipv4/icmp_ratelimit", "0"),  # the rules have a limit of their own, and refusals are to come at once
    ("ipv4/ip_forward", "1"),
)


@dataclass(frozen=True, slots=True)
class Sockets:
    """Sockets in a slot's namespace. As long as one is open the namespace exists.

    `control` switches links; the other two are where the guest asks for names.
    """

    control: socket.socket
    udp: socket.socket
    tcp: socket.socket

    def close(self) -> None:
        """Close them. Idempotent."""
        for each in (self.control, self.udp, self.tcp):
            each.close()


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes the slots of one server. `digest`: what its names are told from those of others by."""

    digest: str
    config: NetworkConfig

    @property
    def beginning(self) -> str:
        """How the names of its slots begin."""
        return f"{NAMESPACES}{self.digest}-"

    def make(self, judgement: int) -> tuple[str, Sockets]:
        """Make a slot, and return its name. Raises NoCapacity, Failed, Unsupported, OSError; then there is none."""
        with ExitStack() as undo:
            with alone():
                own, index = own_addresses(), self._free()
                name = f"{self.beginning}{index:04x}"
                undo.callback(self.remove, name)
                self._connect(index, name)
            sockets = netns.within(name, lambda: self._fill(index, own, judgement))
            undo.pop_all()
            return name, sockets

    def _free(self) -> int:
        """Return the number of a slot that nobody on this host has."""
        shown = ip_told("-4", "address", "show")
        taken = {each.get("local") for link in shown for each in link.get("addr_info", ())}
        there, most = set(netns.names(self.beginning)), min(_MOST, slots_in(self.config.range))
        for index in random.sample(range(most), min(_TRIES, most)):
            address = str(slot_network(self.config.range, index)[0].ip)
            if address not in taken and f"{self.beginning}{index:04x}" not in there:
                return index
        raise NoCapacity(f"there is no room in {self.config.range} for another slot")

    def _connect(self, index: int, name: str) -> None:
        """Make the namespace, and the link between it and the host."""
        link, (outer, _) = self._link(name), slot_network(self.config.range, index)
        ip(
            f"netns add {name}",
            f"link add {link} type veth peer name {UPLINK} netns {name}",
            f"address add {outer} dev {link}",
        )
        conf = Path("/proc/sys/net")
        (conf / f"ipv4/conf/{link}/forwarding").write_text("1")
        (conf / f"ipv4/conf/{link}/rp_filter").write_text("1")
        (conf / f"ipv4/conf/{link}/accept_redirects").write_text("0")
        with suppress(FileNotFoundError):  # a host without IPv6
            (conf / f"ipv6/conf/{link}/disable_ipv6").write_text("1")
        ip(f"link set {link} up")

    def _fill(self, index: int, own: list[IPv4Address], judgement: int) -> Sockets:
        """Furnish the namespace: within it. The firewall is there before anything could pass."""
        outer, inner = slot_network(self.config.range, index)
        for path, value in _SYSCTLS:
            with suppress(FileNotFoundError):  # a host without IPv6
                Path("/proc/sys/net", path).write_text(value)
        ip(f"tuntap add {TAP} mode tap", f"link set {TAP} address {GATEWAY_MAC}")
        nft(slot_rules(self.config, own, Egress(), judgement))
        rate = f"rate {self.config.mbit}mbit burst {_BURST} latency {_LATENCY}"
        tc(f"qdisc add dev {TAP} root tbf {rate}", f"qdisc add dev {UPLINK} root tbf {rate}")
        ip(
            f"address add {GATEWAY} dev {TAP}",
            f"neigh replace {GUEST.ip} lladdr {GUEST_MAC} nud permanent dev {TAP}",
            f"address add {inner} dev {UPLINK}",
            f"link set {UPLINK} up",
            f"route add default via {outer.ip}",
        )
        return open_sockets()

    def _link(self, name: str) -> str:
        return LINKS + name.removeprefix(NAMESPACES)

    def remove(self, name: str) -> None:
        """Remove a slot, whole or in parts. Never fails: what is left is found by the next sweep."""
        try:
            there = {str(link["ifname"]) for link in ip_told("link", "show")}
            if (link := self._link(name)) in there:
                ip(f"link delete {link}")
            if (netns.FOLDER / name).exists():
                ip(f"netns delete {name}")
            index = int(name.removeprefix(self.beginning), 16)
            forget_flows_from(str(slot_network(self.config.range, index)[1].ip))
        except (TorporError, OSError, ValueError) as error:
            _log.error("a slot could not be removed", slot=name, error=str(error))

    def adopt(self, name: str) -> Sockets:
        """Return new sockets in a slot that is there. Raises Failed, OSError."""
        return netns.within(name, open_sockets)

    def left(self) -> list[str]:
        """Return the names of the slots that are there, in whole or in part. Raises Failed, Unsupported."""
        beginning = self._link(self.beginning)
        links = [str(link["ifname"]) for link in ip_told("link", "show")]
        halves = [NAMESPACES + link.removeprefix(LINKS) for link in links if link.startswith(beginning)]
        return sorted({*netns.names(self.beginning), *halves})

    def is_held(self, name: str) -> bool:
        """Tell whether a process has the tap of a slot. Raises Failed, OSError."""
        shown = netns.within(name, lambda: ip_told("link", "show", TAP))
        return any("NO-CARRIER" not in link.get("flags", ()) and "UP" in link.get("flags", ()) for link in shown)


def open_sockets() -> Sockets:
    """Open the sockets of a slot, within it. Raises OSError."""
    with ExitStack() as undo:
        control, udp = (undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(2))
        tcp = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for each in (udp, tcp):
            # A program that is being started has those of an earlier time for a moment still.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.setblocking(False)
            each.bind((str(GATEWAY.ip), _DNS_PORT))
        tcp.listen(_BACKLOG)
        undo.pop_all()
        return Sockets(control, udp, tcp)


def is_there(name: str) -> bool:
    """Tell whether there is a slot's namespace."""
    return bool(name) and (netns.FOLDER / name).exists()
