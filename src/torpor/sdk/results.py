"""What calls of the SDK return: plain frozen values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TypeVar

from torpor.sdk.volumes import AttachedVolume
from torpor.wire.events import EventView as Event
from torpor.wire.ports import PortView as Port
from torpor.wire.processes import ProcessView as ProcessInfo
from torpor.wire.public import FileEntry, SandboxView, Verified
from torpor.wire.public import TemplateView as Template
from torpor.wire.reach import AllowList, NetworkView
from torpor.wire.reach import DeniedView as Denied
from torpor.wire.templates import BuildView as TemplateBuild

__all__ = [
    "Denied",
    "Event",
    "ExecResult",
    "FileEntry",
    "NetworkInfo",
    "Page",
    "Port",
    "ProcessInfo",
    "SandboxInfo",
    "Template",
    "TemplateBuild",
    "Transferred",
    "Verified",
]

T = TypeVar("T")
# What a sandbox may reach: "internet", "none", or the entries of its allow-list.
Reach = str | tuple[str, ...]


@dataclass(frozen=True)
class ExecResult:
    """How a command ended and what it wrote.

    `stdout` and `stderr` are text (UTF-8, undecodable bytes replaced by U+FFFD); `stdout_bytes` and `stderr_bytes` are
    exact. `exit_code` is the command's own, or 128 + the signal's number where one ended it, and `signal` is then its
    name. `oom_killed`: the guest ran out of memory and killed it. `duration_ms`: its running time in milliseconds.
    `truncated`: a stream was longer than 64 MiB and what came after is missing here (callbacks got all of it).
    """

    stdout: str
    stderr: str
    exit_code: int
    duration_ms: int
    truncated: bool = False
    signal: str | None = None
    oom_killed: bool = False
    stdout_bytes: bytes = field(default=b"", repr=False)
    stderr_bytes: bytes = field(default=b"", repr=False)


def reach_of(told: str | AllowList) -> Reach:
    """Return what may be reached as it is shown."""
    return tuple(told.allow) if isinstance(told, AllowList) else told


@dataclass(frozen=True)
class NetworkInfo:
    """What a sandbox may reach, its own address (None: it has no network), and what it could not reach.

    `denied`: how many packets were not let through, for which reason, and where to, if that is known; counted since its
    machine came to life, and empty while it hibernates.
    """

    network: Reach
    guest_ip: str | None
    denied: tuple[Denied, ...] = ()

    @classmethod
    def of(cls, view: NetworkView) -> NetworkInfo:
        """Return the value of what came over the wire."""
        return cls(reach_of(view.network), view.guest_ip, tuple(view.denied))


@dataclass(frozen=True)
class SandboxInfo:
    """A sandbox as the server last described it. Times are aware, in UTC.

    `expires_at` is the hard end of its life (None: none). `boot_ms`: what the host took to bring it to life, in
    milliseconds. `reason` says why a `failed` sandbox failed. `from_snapshot` is the snapshot it came to life from, if
    not its template's, and `parent_id` the sandbox it was forked from. `last_snapshot_id` is the newest snapshot it can
    go back to. `network` is what it may reach, "internet", "none" or the entries of an allow-list, and `guest_ip` its
    own address (None: no network). Of its secrets `secret_names` are all that is told. The next six say what the server
    does for it of its own accord, as `create` was asked. `volumes` are those it has.
    """

    id: str
    name: str | None
    template: str
    state: str
    cpu: int
    memory_mb: int
    disk_gb: int
    network: Reach
    guest_ip: str | None
    secret_names: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    ttl_seconds: int | None
    persistent: bool
    metadata: Mapping[str, str]
    from_snapshot: str | None
    parent_id: str | None
    last_snapshot_id: str | None
    boot_ms: int | None
    boot_mode: str
    reason: str | None
    idle_timeout_seconds: int | None
    on_idle: str
    on_crash: str
    checkpoint_every_seconds: int | None
    checkpoint_every_execs: int | None
    checkpoint_keep: int
    volumes: tuple[AttachedVolume, ...]

    @classmethod
    def of(cls, view: SandboxView) -> SandboxInfo:
        """Return the value of what came over the wire."""
        fields = dict(view) | {"network": reach_of(view.network), "secret_names": tuple(view.secret_names)}
        fields["volumes"] = tuple(AttachedVolume.of(each) for each in view.volumes)
        return cls(state=fields.pop("status"), metadata=MappingProxyType(fields.pop("metadata")), **fields)


@dataclass(frozen=True)
class Transferred:
    """What an upload or download moved. `skipped`: links that point to a folder or to nothing, which are left out."""

    files: int
    bytes: int
    skipped: tuple[str, ...] = ()


class Tally:
    """What a transfer has moved so far, which `on_progress` is told: whole files, and all bytes."""

    def __init__(self, on_progress: Callable[[Transferred], object] | None) -> None:
        self._on_progress = on_progress
        self._files = self._bytes = 0
        self._skipped: list[str] = []

    def moving(self, count: int) -> None:
        """So many bytes of the file under way were moved; fewer than before, if it was begun anew."""
        if self._on_progress is not None:
            self._on_progress(Transferred(self._files, self._bytes + count, tuple(self._skipped)))

    def moved(self, count: int) -> None:
        """A file of so many bytes was moved."""
        self._files, self._bytes = self._files + 1, self._bytes + count
        self.moving(0)

    def skip(self, name: str) -> None:
        """Leave something out."""
        self._skipped.append(name)

    def so_far(self) -> Transferred:
        """Return all of it."""
        return Transferred(self._files, self._bytes, tuple(self._skipped))


class Page(list[T]):
    """One page of a listing, newest first. `next_cursor` asks for the page after it, and is None on the last."""

    def __init__(self, items: Iterable[T] = (), next_cursor: str | None = None) -> None:
        super().__init__(items)
        self.next_cursor = next_cursor
