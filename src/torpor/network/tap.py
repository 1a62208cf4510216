"""Taps: the end of a wire that a VMM holds as a descriptor."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from typing import Literal

DEVICE = "/dev/net/tun"
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_IFF_UP = 1


def attach(name: str) -> int:
    """Return a new descriptor of a tap in the namespace of this thread. Raises OSError, also if somebody has one."""
    descriptor = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def switch(control: socket.socket, name: str, to: Literal["up", "down"]) -> None:
    """Switch a link on or off, in the namespace of a socket. Raises OSError."""
    asked = struct.pack("16sh22x", name.encode(), 0)
    flags = struct.unpack_from("16sh", fcntl.ioctl(control, _SIOCGIFFLAGS, asked))[1]
    flags = flags | _IFF_UP if to == "up" else flags & ~_IFF_UP
    fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh22x", name.encode(), flags))
