"""How much of a host's memory, disk and machines may be promised, and to whom: values, and the one decision."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

MIB, GIB = 1024**2, 1024**3

# What a machine takes of its host's memory beyond its guest's: the VMM's own 25 MiB, up to 128 MiB of translations
# under emulation, and some to spare for what the kernel keeps for it.
OVERHEAD_BYTES = 192 * MIB

Resource = Literal["machines", "memory", "disk"]
Kind = Literal["sandboxes", "memory", "disk", "snapshots", "templates", "builds", "volumes", "volume_space"]


@dataclass(frozen=True, slots=True)
class Need:
    """What machines may take up at the most: memory with what their VMMs need, and what their disks can grow to.

    In bytes.
    """

    memory_bytes: int = 0
    disk_bytes: int = 0
    machines: int = 1

    def __add__(self, other: Need) -> Need:
        return Need(
            self.memory_bytes + other.memory_bytes,
            self.disk_bytes + other.disk_bytes,
            self.machines + other.machines,
        )


NOTHING = Need(machines=0)


def need_of(memory_mib: int, disk_gib: int, machines: int = 1) -> Need:
    """Return what machines with so much memory and disk each need."""
    return Need((memory_mib * MIB + OVERHEAD_BYTES) * machines, disk_gib * GIB * machines, machines)


def total(needs: Iterable[Need]) -> Need:
    """Return what several need together."""
    return sum(needs, NOTHING)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be promised to machines in all. Memory and disk in bytes; None: no bound."""

    machines: int | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Shortage:
    """What there is too little of: of `limit`, `used` is promised, to `machines` in all, and `needed` is asked for, by
    `machines_wanted`. In bytes; of the resource `machines`, in machines.
    """

    resource: Resource
    limit: int
    used: int
    needed: int
    machines: int
    machines_wanted: int

    def __str__(self) -> str:
        if self.resource == "machines":
            more = "one more is" if self.needed == 1 else f"{self.needed} more are"
            return f"{self.used} of {self.limit} machines are there or about to be, and {more} wanted"
        promised = f"{gib(self.used)} of {gib(self.limit)} GiB of {self.resource} are promised to"
        machines = "one machine" if self.machines == 1 else f"{self.machines} machines"
        return f"{promised} {machines}, and {mib(self.needed)} MiB more are wanted"


def shortage(limits: Limits, promised: Need, wanted: Need) -> Shortage | None:
    """Return what there is too little of for `wanted` beside what is promised, None if there is enough of all."""
    table: tuple[tuple[Resource, int | None, int, int], ...] = (
        ("machines", limits.machines, promised.machines, wanted.machines),
        ("memory", limits.memory_bytes, promised.memory_bytes, wanted.memory_bytes),
        ("disk", limits.disk_bytes, promised.disk_bytes, wanted.disk_bytes),
    )
    for resource, limit, used, needed in table:
        if limit is not None and used + needed > limit:
            return Shortage(resource, limit, used, needed, promised.machines, wanted.machines)
    return None


@dataclass(frozen=True, slots=True)
class Holdings:
    """What is somebody's: sandboxes that are not deleted, in any state, with their memory and disks, in bytes;
    snapshots that were asked for; templates of its own; builds that wait or run; volumes, and their sizes together, in
    bytes.
    """

    sandboxes: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    snapshots: int = 0
    templates: int = 0
    builds: int = 0
    volumes: int = 0
    volume_bytes: int = 0

    def __add__(self, other: Holdings) -> Holdings:
        return Holdings(
            self.sandboxes + other.sandboxes,
            self.memory_bytes + other.memory_bytes,
            self.disk_bytes + other.disk_bytes,
            self.snapshots + other.snapshots,
            self.templates + other.templates,
            self.builds + other.builds,
            self.volumes + other.volumes,
            self.volume_bytes + other.volume_bytes,
        )


@dataclass(frozen=True, slots=True)
class Quota:
    """How much of each may be somebody's, and how large one volume may be. None: no bound."""

    sandboxes: int | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    snapshots: int | None = None
    templates: int | None = None
    builds: int | None = None
    volumes: int | None = None
    volume_bytes: int | None = None
    volume_size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Excess:
    """A quota that would be exceeded: of `limit`, `used` is in use, and `wanted` more is asked for."""

    resource: Kind
    limit: int
    used: int
    wanted: int

    def __str__(self) -> str:
        if self.resource == "volume_space":
            more = f"{mib(self.wanted)} MiB more are wanted"
            return f"{gib(self.used)} of {gib(self.limit)} GiB are your volumes', and {more}"
        if self.resource in ("memory", "disk"):
            return (
                f"{gib(self.used)} of {gib(self.limit)} GiB of {self.resource} are your sandboxes', and "
                f"{mib(self.wanted)} MiB more are wanted"
            )
        more = "one more is" if self.wanted == 1 else f"{self.wanted} more are"
        return f"{self.used} of {self.limit} {self.resource} are yours, and {more} wanted"


def excess(quota: Quota, held: Holdings, wanted: Holdings) -> Excess | None:
    """Return which quota `wanted` beside what is held would exceed, None if it fits. What nothing is wanted of fits."""
    table: tuple[tuple[Kind, int | None, int, int], ...] = (
        ("sandboxes", quota.sandboxes, held.sandboxes, wanted.sandboxes),
        ("memory", quota.memory_bytes, held.memory_bytes, wanted.memory_bytes),
        ("disk", quota.disk_bytes, held.disk_bytes, wanted.disk_bytes),
        ("snapshots", quota.snapshots, held.snapshots, wanted.snapshots),
        ("templates", quota.templates, held.templates, wanted.templates),
        ("builds", quota.builds, held.builds, wanted.builds),
        ("volumes", quota.volumes, held.volumes, wanted.volumes),
        ("volume_space", quota.volume_bytes, held.volume_bytes, wanted.volume_bytes),
    )
    for kind, limit, used, more in table:
        if limit is not None and more and used + more > limit:
            return Excess(kind, limit, used, more)
    return None


def gib(size: int) -> str:
    """Return a number of bytes in GiB, for a sentence."""
    return f"{size / GIB:.1f}".removesuffix(".0")


def mib(size: int) -> str:
    """Return a number of bytes in MiB, for a sentence: never less than it is."""
    return str(-(-size // MIB))
