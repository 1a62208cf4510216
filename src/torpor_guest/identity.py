"""`adopt`: after every restore the guest becomes the sandbox it now is, and says so only when all of it is done.

Programs in the guest can watch /run/torpor/identity.json, which is replaced in one step at every adoption:

    {"sandbox_id": "sbx-...", "generation": 1700000000000000000}

`generation` grows with every adoption, also with one under the same id (a wake). Commands find the id in TORPOR_SANDBOX_ID.
"""

from __future__ import annotations

import base64
import binascii
import errno
import fcntl
import hashlib
import json
import os
import re
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from torpor_guest.connection import Stream
from torpor_guest.refusal import Refusal, invalid
from torpor_guest.requests import Request

_RNDADDENTROPY = 0x40085203
_RNDRESEEDCRNG = 0x5207
_MIN_ENTROPY = 64
_MAX_ENTROPY = 512
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_HOST_LINE = re.compile(r"^127\.0\.1\.1\s.*\n?", re.MULTILINE)


class Order(NamedTuple):
    """What the guest becomes. `wall_ns`: nanoseconds since 1970."""

    sandbox_id: str
    hostname: str
    wall_ns: int
    entropy: bytes
    generation: int


class Machine(Protocol):
    """What an identity is written to. Each method raises OSError if it did not happen."""

    @property
    def root(self) -> str:
        """Below this the files are: "" in a guest."""

    def set_clock(self, wall_ns: int) -> None:
        """Set the wall clock."""

    def add_entropy(self, entropy: bytes) -> None:
        """Mix bytes into the random pool, count them as entropy, and make the generator draw from it anew."""

    def set_hostname(self, name: str) -> None:
        """Set the kernel's host name."""


class GuestMachine:
    """The guest itself."""

    root = ""

    def set_clock(self, wall_ns: int) -> None:
        time.clock_settime_ns(time.CLOCK_REALTIME, wall_ns)

    def add_entropy(self, entropy: bytes) -> None:
        fd = os.open("/dev/urandom", os.O_WRONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, _RNDADDENTROPY, struct.pack(f"ii{len(entropy)}s", len(entropy) * 8, len(entropy), entropy))
            fcntl.ioctl(fd, _RNDRESEEDCRNG)
        finally:
            os.close(fd)

    def set_hostname(self, name: str) -> None:
        socket.sethostname(name)


class FolderMachine:
    """Stands in for a guest where the agent runs as an ordinary process: only files, below a folder of the caller's."""

    def __init__(self, root: str) -> None:
        self.root = root
        os.makedirs(f"{root}/etc", exist_ok=True)

    def set_clock(self, wall_ns: int) -> None:
        """The clock belongs to the host; it stays."""

    def add_entropy(self, entropy: bytes) -> None:
        """The random pool belongs to the host; it stays."""

    def set_hostname(self, name: str) -> None:
        """The host name belongs to the host; it stays."""


class Adoption:
    """Serves `adopt`. `mark` is given the variables that every later command gets, `thaw` lets the user's processes go on."""

    def __init__(self, machine: Machine, mark: Callable[[dict[bytes, bytes]], None], thaw: Callable[[], None]) -> None:
        self._machine, self._mark, self._thaw = machine, mark, thaw

    def adopt(self, stream: Stream, request: Request) -> None:
        """`adopt` {sandbox_id, hostname, wall_ns, entropy, generation}: RESULT {sandbox_id, hostname, wall_ns, skipped}."""
        order = read_order(request)
        try:
            skipped = self._become(order)
        except OSError as error:
            raise Refusal("failed", f"the guest could not take its identity: {error}") from error
        self._mark({b"TORPOR_SANDBOX_ID": order.sandbox_id.encode()})
        stream.result(
            {
                "sandbox_id": order.sandbox_id,
                "hostname": order.hostname,
                "generation": order.generation,
                "wall_ns": time.time_ns(),
                "skipped": skipped,
            }
        )
        self._thaw()

    def _become(self, order: Order) -> list[str]:
        """Return the files that could not be written because their place is read-only or missing in this image."""
        machine, root = self._machine, self._machine.root
        # Entropy first: whatever draws random bytes from here on differs from every other guest of the same snapshot.
        machine.add_entropy(order.entropy)
        machine.set_clock(order.wall_ns)
        machine.set_hostname(order.hostname)
        contents = {
            "/etc/hostname": lambda _: order.hostname + "\n",
            "/etc/hosts": lambda old: with_host_line(old, order.hostname),
            "/etc/machine-id": lambda _: machine_id(order.sandbox_id) + "\n",
        }
        skipped = [name for name, content in contents.items() if not _rewrite(root + name, content)]
        os.makedirs(f"{root}/run/torpor", mode=0o755, exist_ok=True)
        facts = {"sandbox_id": order.sandbox_id, "generation": order.generation}
        _replace(f"{root}/run/torpor/identity.json", json.dumps(facts) + "\n")
        return skipped


def read_order(request: Request) -> Order:
    """Read the request. Raises Refusal."""
    sandbox_id, hostname = request.text("sandbox_id"), request.text("hostname")
    if not _LABEL.fullmatch(sandbox_id) or not _LABEL.fullmatch(hostname):
        raise invalid("sandbox_id and hostname must be host name labels")
    try:
        entropy = base64.b64decode(request.text("entropy"), validate=True)
    except (binascii.Error, ValueError):
        raise invalid("entropy must be base64") from None
    if not _MIN_ENTROPY <= len(entropy) <= _MAX_ENTROPY:
        raise invalid(f"entropy must be {_MIN_ENTROPY} to {_MAX_ENTROPY} bytes")
    wall_ns = request.whole("wall_ns", 1, 2**63 - 1)
    return Order(sandbox_id, hostname, wall_ns, entropy, request.whole("generation", 0, 2**63 - 1))


def machine_id(sandbox_id: str) -> str:
    """Return the /etc/machine-id of a sandbox: 32 hexadecimal digits, the same for the same id."""
    return hashlib.blake2s(b"torpor machine-id " + sandbox_id.encode(), digest_size=16).hexdigest()


def with_host_line(hosts: str, hostname: str) -> str:
    """Return the text of /etc/hosts with exactly one line for 127.0.1.1, where the first one stood or else at the end."""
    line = f"127.0.1.1\t{hostname}\n"
    first = _HOST_LINE.search(hosts)
    if first is None:
        start = hosts if hosts.strip() else "127.0.0.1\tlocalhost\n::1\tlocalhost\n"
        return start + ("" if start.endswith("\n") else "\n") + line
    return hosts[: first.start()] + line + _HOST_LINE.sub("", hosts[first.end() :])


def _rewrite(path: str, content: Callable[[str], str]) -> bool:
    """Give a file new content; False where the image does not allow it."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            old = file.read(1024 * 1024)
    except FileNotFoundError:
        old = ""
    new = content(old)
    if new == old:
        return True
    try:
        _replace(path, new)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.ENOENT):
            return False
        raise
    return True


def _replace(path: str, text: str) -> None:
    """Put a file (0644) in its place in one step."""
    draft = f"{path}.torpor-{os.urandom(4).hex()}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with open(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
            os.fchmod(fd, 0o644)
            file.write(text)
        os.rename(draft, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(draft)
        raise
