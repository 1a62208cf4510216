"""Egress: what a sandbox may reach outside itself."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import idna

# Networks and names together.
MAX_ENTRIES = 256
_MAX_NAME = 253
_MAX_SHOWN = 80
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_ADDRESS_LIKE = re.compile(r"[0-9.]+(?:/.*)?|.*[:/].*")

# What no sandbox reaches, whatever its policy: the host and its neighbours, carrier-grade NAT, loopback, link-local
# with the metadata address, multicast, and what is nobody's. An allow-list that takes some of it in opens the rest.
UNREACHABLE = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)


class Mode(StrEnum):
    """How far a sandbox reaches: every public address, nothing, or what an allow-list names."""

    INTERNET = "internet"
    NONE = "none"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True)
class Egress:
    """What a sandbox may reach. The two tuples are empty unless `mode` is `ALLOW`.

    `cidrs`: IPv4 networks such as `198.51.100.0/24`, sorted, none within another. `names`: lower-case host names as DNS
    has them (IDNA), `example.com` for that name alone, `*.example.com` for all names below it, at any depth, and not
    for itself.
    """

    mode: Mode = Mode.INTERNET
    cidrs: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def spoken(self) -> str | list[str]:
        """Return what `egress_from` takes back: `internet`, `none`, or the entries of the allow-list."""
        return [*self.cidrs, *self.names] if self.mode is Mode.ALLOW else self.mode.value


INTERNET, NO_NETWORK = Egress(), Egress(Mode.NONE)


def egress_from(value: str | Sequence[str]) -> Egress:
    """Return the policy that is meant: `internet`, `none`, or an allow-list of IPv4 networks, addresses and names.

    Raises ValueError, with one sentence for whoever gave it, for anything else.
    """
    if isinstance(value, str):
        if value not in (Mode.INTERNET.value, Mode.NONE.value):
            raise ValueError(f'network has to be "internet", "none" or an allow-list, not {_shown(value)}')
        return Egress(Mode(value))
    if not value:
        raise ValueError('an allow-list needs at least one entry; "none" is what lets nothing out')
    if len(value) > MAX_ENTRIES:
        raise ValueError(f"an allow-list has at most {MAX_ENTRIES} entries, not {len(value)}")
    networks = [_network(entry) for entry in value if _ADDRESS_LIKE.fullmatch(entry)]
    names = [_name(entry) for entry in value if not _ADDRESS_LIKE.fullmatch(entry)]
    return Egress(Mode.ALLOW, _merged(networks), tuple(dict.fromkeys(names)))


def _merged(networks: Iterable[ipaddress.IPv4Network]) -> tuple[str, ...]:
    return tuple(str(network) for network in ipaddress.collapse_addresses(networks))


def _network(text: str) -> ipaddress.IPv4Network:
    try:
        network = ipaddress.IPv4Network(text, strict=False)
    except ValueError:
        raise ValueError(f"{_shown(text)} is {_no_network(text)}") from None
    address = text.partition("/")[0]
    if str(network.network_address) != address:
        raise ValueError(f"{_shown(text)} names an address within a network: give {network}, or {address} for it alone")
    if any(network.subnet_of(never) for never in UNREACHABLE):
        raise ValueError(f"{_shown(text)} is private or reserved, and an allow-list opens no such addresses")
    return network


def _no_network(text: str) -> str:
    if "://" in text:
        return "a URL, and an allow-list takes host names and IPv4 networks"
    try:
        ipaddress.IPv6Network(text, strict=False)
    except ValueError:
        return "neither a host name nor an IPv4 network such as 198.51.100.0/24"
    return "IPv6, which sandboxes do not have"


def _name(text: str) -> str:
    below = text.startswith("*.")
    host = text.removeprefix("*.").removesuffix(".")
    if "*" in host:
        raise ValueError(f"{_shown(text)}: a star stands only at the beginning, as in *.example.com")
    labels = _encoded(host, text).split(".")
    whole = ".".join(["*", *labels] if below else labels)
    if not all(_LABEL.fullmatch(label) for label in labels) or len(whole) > _MAX_NAME:
        raise ValueError(f"{_shown(text)} is no host name: labels of 1 to 63 letters, digits and dashes, 253 in all")
    if len(labels) < 2 and not below:
        raise ValueError(f"{_shown(text)} is no host name with a domain, such as code.example.com")
    if labels[-1].isdecimal():
        raise ValueError(f"{_shown(text)} ends in a number, as no host name does")
    return whole


def _encoded(host: str, text: str) -> str:
    """Return a name as DNS has it, in lower case."""
    if host.isascii():
        return host.lower()
    try:
        return idna.encode(host, uts46=True).decode()
    except idna.IDNAError:
        raise ValueError(f"{_shown(text)} is no host name that DNS can hold") from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "...")
