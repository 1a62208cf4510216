"""Names of images in registries, and which registries may be spoken to.

    [registry/]path[:tag][@digest]

A name whose first part is no host leaves the registry to skopeo, which has one for these.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from torpor.errors import InvalidRequest

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:(?P<host>[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::(?P<port>[0-9]{{1,5}}))?/)?"
    rf"(?P<path>{_PART}(?:/{_PART})*)(?::(?P<tag>[\w][\w.-]{{0,127}}))?(?:@(?P<digest>sha256:[0-9a-f]{{64}}))?",
    re.ASCII,
)
_HTTPS = 443
_LONGEST = 512
# A gateway of the network may pass on to an IPv4 address what is sent here: to the last four bytes (RFC 6052), or to
# what it alone knows (RFC 8215).
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
_TRANSLATED_WITHIN = ipaddress.IPv6Network("64:ff9b:1::/48")


@dataclass(frozen=True, slots=True)
class Reference:
    """An image's name. `host` is None where the name has no registry; `port` is None for the usual one."""

    text: str
    host: str | None = None
    port: int | None = None

    @property
    def registry(self) -> str:
        """The registry, with its port if it has one of its own; empty where the name has none."""
        return "" if self.host is None else self.host + ("" if self.port is None else f":{self.port}")

    @property
    def is_loopback(self) -> bool:
        """Whether the registry is on this host by its very name: then it is spoken to without TLS."""
        return self.host is not None and is_loopback(self.host)


def parse_reference(text: str) -> Reference:
    """Read an image's name. Raises InvalidRequest."""
    found = _REFERENCE.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None or _is_unsaid(found["host"], found["port"]):
        raise InvalidRequest(
            f"image: {text[:200]!r} is no name of an image", hint="such as registry.example.com/team/tools:1.2"
        )
    host, port = found["host"], found["port"]
    if host is not None and _is_path(host, port):
        return Reference(text)
    if port is not None and not 0 < int(port) < 65536:
        raise InvalidRequest(f"image: {text[:200]!r} names the port {port}, which there is not")
    return Reference(text, host, None if port is None else int(port))


def _is_path(host: str, port: str | None) -> bool:
    """Tell whether what may be a host is the first part of a path: it has no dot and no port."""
    return port is None and not set(".:") & set(host) and host != "localhost"


def _is_unsaid(host: str | None, port: str | None) -> bool:
    """Tell whether what may be a host can be neither that nor a part of a path, which has small letters only."""
    return host is not None and _is_path(host, port) and host != host.lower()


def is_loopback(host: str) -> bool:
    """Tell whether a host is this one by its very name."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Allowed:
    """The registries, as `host` or `host:port`, that may be spoken to although their addresses are not public."""

    registries: frozenset[str] = frozenset()

    @classmethod
    def from_environment(cls) -> Allowed:
        """Return what TORPOR_REGISTRIES lists, with commas."""
        words = os.environ.get("TORPOR_REGISTRIES", "").split(",")
        return cls(frozenset(word.strip().lower() for word in words if word.strip()))

    def lists(self, host: str, port: int | None) -> bool:
        """Tell whether a registry is listed."""
        name = host.lower()
        return name in self.registries or f"{name}:{_HTTPS if port is None else port}" in self.registries


def refusal(host: str, addresses: Iterable[str]) -> InvalidRequest | None:
    """Return why a host with these addresses may not be spoken to, None if it may."""
    hidden = [each for each in addresses if not is_public(each)]
    if not hidden:
        return None
    return InvalidRequest(
        f"the registry {host} has the address {hidden[0]}, which is not public",
        hint="the operator of the host can allow it with TORPOR_REGISTRIES",
    )


def is_public(address: str) -> bool:
    """Tell whether an IP address is one that anybody can have on the internet, and so is what it stands for."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and not all(map(_is_public, _carried(found))):
        return False
    return _is_public(found) and found not in _TRANSLATED_WITHIN


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return address.is_global and not address.is_multicast


def _carried(address: ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """Return the IPv4 addresses that an IPv6 address stands for."""
    translated = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _TRANSLATED else None
    return [each for each in (address.ipv4_mapped, address.sixtofour, translated) if each is not None]
