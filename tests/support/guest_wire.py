"""A network namespace that stands in for a guest: connected to a slot by its tap, with what guests are baked with."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from outside_world import new_name, run
from torpor.network import netns
from torpor.network.addresses import GATEWAY, GUEST, GUEST_MAC
from torpor.network.contract import Slot
from torpor.network.tap import attach

_T = TypeVar("_T")
_PATIENCE_S = 3.0


@dataclass(frozen=True)
class GuestWire:
    """A guest by its network card alone."""

    name: str

    def do(self, work: Callable[[], _T]) -> _T:
        """Do something within the guest."""
        return netns.within(self.name, work)

    def call(self, address: str, port: int, *, patience_s: float = _PATIENCE_S) -> str:
        """Connect to a TCP port and return the first line that comes, or what became of it: "refused", "silent"."""
        return self.do(lambda: said_at(address, port, patience_s))

    def ask(self, address: str, port: int, data: bytes = b"echo", *, patience_s: float = _PATIENCE_S) -> bytes:
        """Send a packet and return the one that comes back, or nothing."""
        return self.do(lambda: _asked(address, port, data, patience_s))

    def connect(self, address: str, port: int) -> socket.socket:
        """Return a connected socket of the guest's."""
        return self.do(lambda: socket.create_connection((address, port), _PATIENCE_S))

    def send_frame(self, frame: bytes) -> None:
        """Send a frame as it is, whatever it says of who sent it."""

        def send() -> None:
            with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
                sock.bind(("eth0", 0))
                sock.send(frame)

        self.do(send)


def said_at(address: str, port: int, patience_s: float) -> str:
    """Return the first line that somebody says, or what became of the attempt to hear it."""
    try:
        with socket.create_connection((address, port), patience_s) as sock:
            sock.settimeout(patience_s)
            return sock.recv(200).decode().strip()
    except TimeoutError:
        return "silent"
    except OSError:
        return "refused"


def _asked(address: str, port: int, data: bytes, patience_s: float) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(patience_s)
        try:
            sock.connect((address, port))
            sock.send(data)
            return sock.recv(4096)
        except OSError:
            return b""


@contextmanager
def guest_on(slot: Slot) -> Iterator[GuestWire]:
    """Connect a guest to a slot while the block lasts."""
    name = f"{new_name()}-guest"
    with ExitStack() as undo:
        run("ip", "netns", "add", name)
        undo.callback(run, "ip", "netns", "delete", name)
        card = netns.within(name, _furnish)
        undo.callback(os.close, card)
        tap = slot.open_tap()
        assert tap is not None
        undo.callback(os.close, tap)
        undo.enter_context(_wired(card, tap))
        yield GuestWire(name)


def _furnish() -> int:
    run("ip", "link", "set", "lo", "up")
    run("ip", "tuntap", "add", "eth0", "mode", "tap")
    run("ip", "link", "set", "eth0", "address", GUEST_MAC)
    card = attach("eth0")  # before it is up: a carrier that comes later is noticed a second later
    run("ip", "address", "add", str(GUEST), "dev", "eth0")
    run("ip", "link", "set", "eth0", "up")
    run("ip", "route", "add", "default", "via", str(GATEWAY.ip))
    return card


@contextmanager
def _wired(one: int, other: int) -> Iterator[None]:
    """Carry frames between two taps, as a VMM does between a tap and its guest."""
    stop_reading, stop = os.pipe()

    def carry() -> None:
        while True:
            ready, _, _ = select.select([one, other, stop_reading], [], [])
            if stop_reading in ready:
                return
            for source, target in ((one, other), (other, one)):
                if source in ready:
                    with contextlib.suppress(OSError):  # a link that is down takes nothing
                        os.write(target, os.read(source, 65536))

    thread = threading.Thread(target=carry)
    thread.start()
    try:
        yield
    finally:
        os.close(stop)
        thread.join()
        os.close(stop_reading)
