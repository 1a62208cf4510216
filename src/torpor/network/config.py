"""What can be set of the network of sandboxes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_address
from typing import Literal, TypeVar

from torpor.errors import InvalidRequest
from torpor.network.addresses import GUEST, NEVER

_T = TypeVar("_T")
_RANGE = IPv4Network("10.213.0.0/16")
_SMALLEST_PREFIX, _LARGEST_PREFIX = 8, 28


@dataclass(frozen=True, slots=True)
class NameServer:
    """Who is asked for names."""

    address: str
    port: int = 53


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """`use`: "auto" gives sandboxes a network where that can be had, "off" never does.

    `range`: where the addresses between the host and its slots are taken from; nobody outside this host sees them.
    `private`: networks that are not public and may be reached all the same, as if they were. `name_servers`: who is
    asked for names; none: those of the host's /etc/resolv.conf. For each sandbox: `mbit`, how much it sends and gets at
    most, in Mbit/s each way; `connections`, how many it has at once; `new_connections`, how many it begins in a second.
    `ready`: how many slots are prepared ahead.
    """

    use: Literal["auto", "off"] = "auto"
    range: IPv4Network = _RANGE
    private: tuple[IPv4Network, ...] = ()
    name_servers: tuple[NameServer, ...] = ()
    mbit: int = 1000
    connections: int = 4096
    new_connections: int = 500
    ready: int = 2


def network_from_environment() -> NetworkConfig:
    """Return what TORPOR_NETWORK, TORPOR_NETWORK_RANGE, TORPOR_NETWORK_PRIVATE, TORPOR_NETWORK_MBIT,
    TORPOR_NETWORK_CONNECTIONS, TORPOR_NETWORK_NEW_CONNECTIONS and TORPOR_DNS set. Raises InvalidRequest.
    """
    default = NetworkConfig()
    use = os.environ.get("TORPOR_NETWORK", "auto")
    if use not in ("auto", "off"):
        raise InvalidRequest(f"TORPOR_NETWORK is {use!r}; it can be auto or off")
    return NetworkConfig(
        use="off" if use == "off" else "auto",
        range=_range(os.environ.get("TORPOR_NETWORK_RANGE", str(default.range))),
        private=_list("TORPOR_NETWORK_PRIVATE", _private),
        name_servers=_list("TORPOR_DNS", _name_server),
        mbit=_number("TORPOR_NETWORK_MBIT", default.mbit, 100_000),
        connections=_number("TORPOR_NETWORK_CONNECTIONS", default.connections, 1_000_000),
        new_connections=_number("TORPOR_NETWORK_NEW_CONNECTIONS", default.new_connections, 1_000_000),
    )


def _list(name: str, parse: Callable[[str], _T]) -> tuple[_T, ...]:
    words = [word.strip() for word in os.environ.get(name, "").split(",")]
    try:
        return tuple(parse(word) for word in words if word)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}") from error


def _number(name: str, default: int, most: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return default
    if not (text.isdecimal() and 1 <= int(text) <= most):
        raise InvalidRequest(f"{name} is {text!r}; it is a number from 1 to {most}")
    return int(text)


def _range(text: str) -> IPv4Network:
    try:
        found = IPv4Network(text)
    except ValueError as error:
        raise InvalidRequest(f"TORPOR_NETWORK_RANGE is {text!r}; it is an IPv4 network: {error}") from error
    if not _SMALLEST_PREFIX <= found.prefixlen <= _LARGEST_PREFIX or not found.is_private:
        sizes = f"/{_SMALLEST_PREFIX} to /{_LARGEST_PREFIX}"
        raise InvalidRequest(f"TORPOR_NETWORK_RANGE is {text!r}; it is a private IPv4 network of {sizes}")
    if found.overlaps(GUEST.network):
        raise InvalidRequest(f"TORPOR_NETWORK_RANGE is {text!r}, and {GUEST.network} is what guests have themselves")
    return found


def _private(text: str) -> IPv4Network:
    found = IPv4Network(text)
    if any(found.overlaps(never) for never in NEVER):
        raise ValueError(f"{text} has loopback, multicast or reserved addresses, which are never reachable")
    return found


def _name_server(text: str) -> NameServer:
    """Read `ADDRESS`, `IPV4:PORT` or `[IPV6]:PORT`."""
    address, port = text, "53"
    if text.startswith("["):
        address, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":") or "53"
    elif text.count(":") == 1:
        address, _, port = text.partition(":")
    ip_address(address)
    if not (port.isdecimal() and 1 <= int(port) <= 65535):
        raise ValueError(f"{text!r} has no port from 1 to 65535")
    return NameServer(address, int(port))
