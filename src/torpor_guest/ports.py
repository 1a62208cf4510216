"""Servers in the guest: `dial` connects to one, `ports` tells which listen."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from torpor_guest.connection import SendsOnly, Stream
from torpor_guest.dials import Dial
from torpor_guest.loop import Loop
from torpor_guest.refusal import Refusal
from torpor_guest.requests import Request

_MOST_PORTS = 512
# The kernel tells listening sockets first, at 150 to 180 bytes each.
_MAX_TABLE = 256 * 1024
_LISTENING = b"0A"
# Of the guest's descriptors, so many are looked at for whose a socket is, and for so long at a time, in seconds.
_MOST_DESCRIPTORS = 20_000
_SLICE_S = 0.005
_SOCKET = "socket:["

Serve = Callable[[Stream, Request], None]


class Ports:
    """Serves the operations that have to do with servers in the guest."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def operations(self) -> dict[str, Serve]:
        """Return the operations by name."""
        return {"dial": self.dial, "ports": self.ports}

    def dial(self, stream: Stream, request: Request) -> None:
        """`dial` {port}: READY, then DATA both ways; RESULT {bytes}, the count sent, once the server ends it.

        It is connected to on 127.0.0.1, else on ::1. Refused as `port_closed` if nobody listens.
        """
        Dial(self._loop, stream, request.whole("port", 1, 65535))

    def ports(self, stream: Stream, request: Request) -> None:
        """`ports` {}: RESULT {ports}, by number: port, address, pid and process, null where they are not known.

        At most 512 are told.
        """
        del request
        Survey(self._loop, stream)


class Survey(SendsOnly):
    """Finds out which sockets listen, and whose they are, in small steps."""

    def __init__(self, loop: Loop, stream: Stream) -> None:
        self._stream = stream
        self._listeners = sorted(_listeners(), key=lambda one: (one["port"], one["address"]))[:_MOST_PORTS]
        self._owners: dict[str, int] = {}
        self._search = _search({one["inode"] for one in self._listeners}, self._owners)
        stream.operation = self
        loop.step(self._step)

    def _step(self) -> bool:
        if not self._stream.open:
            return False
        end = time.monotonic() + _SLICE_S
        for _ in self._search:
            if time.monotonic() >= end:
                return True
        self._stream.result({"ports": [self._told(one) for one in self._listeners]})
        return False

    def _told(self, one: dict[str, Any]) -> dict[str, Any]:
        pid = self._owners.get(one["inode"])
        return {"port": one["port"], "address": one["address"], "pid": pid, "process": _name_of(pid)}

    def on_cancel(self) -> None:
        self._stream.refuse(Refusal("cancelled", "the host gave up"))

    def on_drop(self) -> None:
        """The next step sees it."""


def _listeners() -> Iterator[dict[str, Any]]:
    """Yield the listening TCP sockets: `port`, `address`, `inode`."""
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with suppress(FileNotFoundError), open(f"/proc/net/{name}", "rb", buffering=0) as file:
            for line in _lines_of(file.fileno()):
                fields = line.split()
                if len(fields) > 9 and fields[3] == _LISTENING:
                    address, _, port = fields[1].partition(b":")
                    yield {"port": int(port, 16), "address": _address(address, family), "inode": fields[9].decode()}


def _lines_of(fd: int) -> list[bytes]:
    """Return the whole lines of a table of the kernel's, without its head, as far as it may be long."""
    held = bytearray()
    while len(held) < _MAX_TABLE and (more := os.read(fd, 64 * 1024)):
        held += more
    return bytes(held).split(b"\n")[1:-1]


def _address(text: bytes, family: socket.AddressFamily) -> str:
    """Return an address as it is usually written. The kernel writes each four bytes of it as one number of its own."""
    raw = bytes.fromhex(text.decode())
    words = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    return socket.inet_ntop(family, words)


def _search(wanted: set[str], owners: dict[str, int]) -> Iterator[None]:
    """Enter the processes that hold the wanted sockets, by inode, the first one found for each."""
    looked_at = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        for path in _descriptors(name):
            if looked_at >= _MOST_DESCRIPTORS or len(owners) == len(wanted):
                return
            looked_at += 1
            if looked_at % 256 == 0:
                yield
            with suppress(OSError):  # it was closed meanwhile
                target = os.readlink(path)
                if target.startswith(_SOCKET) and (inode := target[len(_SOCKET) : -1]) in wanted:
                    owners.setdefault(inode, int(name))
        yield


def _descriptors(process: str) -> list[str]:
    folder = f"/proc/{process}/fd"
    try:
        return [f"{folder}/{fd}" for fd in os.listdir(folder)]
    except OSError:  # it has ended meanwhile
        return []


def _name_of(pid: int | None) -> str | None:
    """Return what a process is called, at most 15 bytes; None where it is not known."""
    if pid is None:
        return None
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read(64).decode("utf-8", "replace").rstrip("\n")
    except OSError:
        return None
