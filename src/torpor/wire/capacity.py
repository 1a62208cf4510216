"""How much there may be, and is: of a host's room for machines, and of what a workspace is held to."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Promise(BaseModel):
    """How much of something may be promised (`limit`, None: no bound), and is. Memory and disk in bytes."""

    limit: int | None
    used: int


class DiskRoom(BaseModel):
    """A file system of the host: what is free for the host agent of it, and of what size; `reserve` stays free.

    In bytes.
    """

    path: str
    free_bytes: int
    size_bytes: int
    reserve_bytes: int


class Capacity(BaseModel):
    """What machines may take of a host, and how much of that is promised: to those that live or are about to.

    `disk` is what their disks may grow to together. `spares` are machines that were prepared ahead, and give way.
    `rooms`: the file systems that data is on, as they are now; the one of the records is the first. `stopped`: the
    sandboxes that stand still until there is more room.
    """

    machines: Promise
    memory: Promise
    disk: Promise
    spares: int = 0
    rooms: list[DiskRoom] = Field(default_factory=list)
    stopped: list[str] = Field(default_factory=list)


class QuotaView(BaseModel):
    """`GET /v1/quota`: what the caller's workspace may have, and has, in any state. Memory and disk in bytes."""

    sandboxes: Promise
    memory: Promise
    disk: Promise
    snapshots: Promise
    templates: Promise
    builds: Promise
    volumes: Promise
    volume_space: Promise
