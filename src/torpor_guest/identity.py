"""`adopt`: after every restore the guest becomes the sandbox it now is, and says so only when all of it is done.

Programs in the guest can watch /run/torpor/identity.json, which is written anew at every adoption, while they stand
still:

    {"sandbox_id": "sbx-...", "generation": 1700000000000000000}

`generation` grows with every adoption, also with one under the same id (a wake). Commands find the id in
TORPOR_SANDBOX_ID.

Where one step fails, all has: the host is told, and the user's processes are not let go.

Every create waits for an adoption, and each piece of code in it that has not run since the restore has to be
translated by an emulating host. So it does little: the files are on a tmpfs, bound over their places in /etc, and
stay open.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import os
import re
import socket
import struct
import time
from typing import NamedTuple, Protocol

from torpor_guest.connection import Stream
from torpor_guest.refusal import Refusal, invalid
from torpor_guest.requests import Request

_RNDADDENTROPY = 0x40085203
_RNDRESEEDCRNG = 0x5207
_MIN_ENTROPY = 64
_MAX_ENTROPY = 512
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_OWN_ADDRESS = b"127.0.1.1"
_LOCALHOST = (b"127.0.0.1\tlocalhost", b"::1\tlocalhost")
_MAX_HOSTS = 1024 * 1024

# On a tmpfs; three of the files are bound over their namesakes in /etc by `startup`.
IDENTITY_FOLDER = "/run/torpor"


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
    def files(self) -> IdentityFiles:
        """The files that tell who the guest is."""

    def set_clock(self, wall_ns: int) -> None:
        """Set the wall clock."""

    def add_entropy(self, entropy: bytes) -> None:
        """Mix bytes into the random pool, count them as entropy, and make the generator draw from it anew."""

    def set_hostname(self, name: str) -> None:
        """Set the kernel's host name."""


class IdentityFiles:
    """The files that tell who the guest is, in one folder, kept open."""

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        self._open = {name: _open(f"{folder}/{name}") for name in ("hostname", "hosts", "machine-id", "identity.json")}

    def write(self, order: Order) -> None:
        """Write them all."""
        name = order.hostname.encode()
        self._put("hostname", name + b"\n")
        self._put("hosts", with_host_line(os.pread(self._open["hosts"], _MAX_HOSTS, 0), name))
        self._put("machine-id", machine_id(order.sandbox_id).encode() + b"\n")
        facts = b'{"sandbox_id": "%s", "generation": %d}\n' % (order.sandbox_id.encode(), order.generation)
        self._put("identity.json", facts)

    def _put(self, name: str, data: bytes) -> None:
        fd = self._open[name]
        os.pwrite(fd, data, 0)
        if os.lseek(fd, 0, os.SEEK_END) != len(data):
            os.ftruncate(fd, len(data))


def _open(path: str) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.fchmod(fd, 0o644)
    return fd


class GuestMachine:
    """The guest itself."""

    def __init__(self) -> None:
        self.files = IdentityFiles(IDENTITY_FOLDER)
        self._random = os.open("/dev/urandom", os.O_WRONLY | os.O_CLOEXEC)

    def set_clock(self, wall_ns: int) -> None:
        time.clock_settime_ns(time.CLOCK_REALTIME, wall_ns)

    def add_entropy(self, entropy: bytes) -> None:
        size = len(entropy)
        fcntl.ioctl(self._random, _RNDADDENTROPY, struct.pack(f"ii{size}s", size * 8, size, entropy))
        fcntl.ioctl(self._random, _RNDRESEEDCRNG)

    def set_hostname(self, name: str) -> None:
        socket.sethostname(name)


class FolderMachine:
    """Stands in for a guest where the agent runs as an ordinary process: only files, in a folder of the caller's."""

    def __init__(self, folder: str) -> None:
        self.files = IdentityFiles(folder)

    def set_clock(self, wall_ns: int) -> None:
        """The clock belongs to the host; it stays."""

    def add_entropy(self, entropy: bytes) -> None:
        """The random pool belongs to the host; it stays."""

    def set_hostname(self, name: str) -> None:
        """The host name belongs to the host; it stays."""


class Users(Protocol):
    """What an adoption means to everything of the user's."""

    def mark(self, marks: dict[bytes, bytes], secrets: dict[bytes, bytes] | None) -> None:
        """Give these variables to every later command, and these secrets in place of those it had (None: the same)."""

    def count_hooks(self, event: str) -> int:
        """Return how many hooks there are for an event. Raises Refusal if there is no such event."""

    def thaw(self) -> None:
        """Let the user's processes go on."""


class Adoption:
    """Serves `adopt`."""

    def __init__(self, machine: Machine, users: Users) -> None:
        self._machine, self._users = machine, users

    def adopt(self, stream: Stream, request: Request) -> None:
        """`adopt` {sandbox_id, hostname, wall_ns, entropy, generation, env?, secrets?, thaw?, event?}: RESULT
        {sandbox_id, hostname, generation, wall_ns, hooks}.

        `env` is added to what commands start from; so are `secrets`, in place of all that an earlier adoption gave
        (absent or null: they stay as they are). With `thaw` (it is, unless it is said to be false) the user's processes
        go on, else they stay as they are. `hooks` is how many there are for `event`. If anything fails: ERROR, and
        nothing goes on.
        """
        order, env = read_order(request), request.environment("env")
        secrets = request.optional_environment("secrets")
        thaw, event = request.flag("thaw", default=True), request.optional_text("event")
        hooks = 0 if event is None else self._users.count_hooks(event)
        try:
            self._become(order)
        except OSError as error:
            raise Refusal("failed", f"the guest could not take its identity: {error}") from error
        self._users.mark(env | {b"TORPOR_SANDBOX_ID": order.sandbox_id.encode()}, secrets)
        stream.result(
            {
                "sandbox_id": order.sandbox_id,
                "hostname": order.hostname,
                "generation": order.generation,
                "wall_ns": time.time_ns(),
                "hooks": hooks,
            }
        )
        if thaw:
            self._users.thaw()

    def _become(self, order: Order) -> None:
        machine = self._machine
        # Entropy first: whatever draws random bytes from here on differs from every other guest of the same snapshot.
        machine.add_entropy(order.entropy)
        machine.set_clock(order.wall_ns)
        machine.set_hostname(order.hostname)
        machine.files.write(order)


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


def with_host_line(hosts: bytes, hostname: bytes) -> bytes:
    """Return the text of /etc/hosts with exactly one line for 127.0.1.1, at the end."""
    kept = [line for line in hosts.splitlines() if line.split(None, 1)[:1] != [_OWN_ADDRESS]]
    return b"\n".join([*(kept or _LOCALHOST), _OWN_ADDRESS + b"\t" + hostname, b""])
