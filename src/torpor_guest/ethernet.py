"""The guest's one network card, set up without any program of the image: address, route, and who answers for names.

What they are comes with the kernel's command line, `torpor.net=ADDRESS/PREFIX,GATEWAY`: they are the same for every
guest of a template and never change, so nothing of this has to be done again when a guest is restored. A guest that
has no card, or was not told, goes without.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import re
import socket
import struct
from contextlib import suppress
from typing import NamedTuple

CARD = "eth0"
_WORD = re.compile(r"(?:^|\s)torpor\.net=([0-9.]+/[0-9]+),([0-9.]+)(?:\s|$)")
_SIOCADDRT, _SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x890B, 0x8913, 0x8914, 0x8916, 0x891C
_IFF_UP = 1
_RTF_UP, _RTF_GATEWAY = 1, 2
_NO_IPV6 = f"/proc/sys/net/ipv6/conf/{CARD}/disable_ipv6"


class Ethernet(NamedTuple):
    """The guest's address with its network, and its gateway, which is its name server too."""

    address: ipaddress.IPv4Interface
    gateway: ipaddress.IPv4Address

    def resolv_conf(self) -> bytes:
        """Return the text of /etc/resolv.conf."""
        return b"nameserver %s\n" % str(self.gateway).encode()


def read_ethernet(command_line: str) -> Ethernet | None:
    """Return what the kernel's command line tells; None if it tells nothing of a network that could be used."""
    found = _WORD.search(command_line)
    with suppress(ValueError):
        return None if found is None else Ethernet(ipaddress.IPv4Interface(found[1]), ipaddress.IPv4Address(found[2]))
    return None


def set_up(ethernet: Ethernet) -> bool:
    """Give the card its address and route, and return whether there is a card. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            flags = struct.unpack_from("16sh", fcntl.ioctl(sock, _SIOCGIFFLAGS, _named("24x")))[1]
        except OSError as error:
            if error.errno == errno.ENODEV:
                return False
            raise
        with suppress(FileNotFoundError), open(_NO_IPV6, "wb", buffering=0) as file:  # a kernel without IPv6 has none
            file.write(b"1")
        fcntl.ioctl(sock, _SIOCSIFADDR, _named("16s8x", _sockaddr(ethernet.address.ip)))
        fcntl.ioctl(sock, _SIOCSIFNETMASK, _named("16s8x", _sockaddr(ethernet.address.netmask)))
        fcntl.ioctl(sock, _SIOCSIFFLAGS, _named("h22x", flags | _IFF_UP))
        fcntl.ioctl(sock, _SIOCADDRT, _default_route(ethernet.gateway))
    return True


def _named(form: str, *values: object) -> bytes:
    """Return a `struct ifreq` for the card."""
    return struct.pack(f"16s{form}", CARD.encode(), *values)


def _sockaddr(address: ipaddress.IPv4Address) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, 0, address.packed)


def _default_route(gateway: ipaddress.IPv4Address) -> bytes:
    """Return a `struct rtentry`: everything by the gateway."""
    anywhere = _sockaddr(ipaddress.IPv4Address(0))
    return struct.pack("8x16s16s16sH62x", anywhere, _sockaddr(gateway), anywhere, _RTF_UP | _RTF_GATEWAY)
