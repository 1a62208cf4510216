"""Addresses of sandboxes, and which addresses are not public."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface, IPv4Network

# Every guest has these, baked into its template, so that nothing in it changes when it is restored anywhere.
GUEST = IPv4Interface("10.113.111.2/30")
GATEWAY = IPv4Interface("10.113.111.1/30")
GUEST_MAC, GATEWAY_MAC = "06:74:6f:72:70:02", "06:74:6f:72:70:01"
# What the guest agent reads it from: a word of the guest kernel's command line.
COMMAND_LINE_WORD = f"torpor.net={GUEST},{GATEWAY.ip}"

# IANA's registry of special-purpose addresses, as far as they are not reachable all over the internet, and multicast.
SPECIAL = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local, with the metadata addresses of clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays that are no more
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)

# What no configuration opens.
NEVER = (IPv4Network("0.0.0.0/8"), IPv4Network("127.0.0.0/8"), IPv4Network("224.0.0.0/3"))
_SLOT_PREFIX = 30


def is_reachable(address: IPv4Address, private: tuple[IPv4Network, ...]) -> bool:
    """Tell whether a sandbox may reach an address at all. `private`: what is open beside public addresses."""
    return any(address in network for network in private) or not any(address in network for network in SPECIAL)


def slots_in(range_: IPv4Network) -> int:
    """Return how many slots there can be in a range."""
    return 1 << (_SLOT_PREFIX - range_.prefixlen)


def slot_network(range_: IPv4Network, index: int) -> tuple[IPv4Interface, IPv4Interface]:
    """Return the addresses of a slot's two ends: the host's, and the slot's own, by which the host knows its guest."""
    first = range_.network_address + (index << (32 - _SLOT_PREFIX))
    return IPv4Interface((first + 1, _SLOT_PREFIX)), IPv4Interface((first + 2, _SLOT_PREFIX))
