"""What the control plane remembers, and what holds after each call: the contract both stores keep.

Words: *living* is every sandbox that is not `deleted`; a *claim* ties an idempotency key of a workspace to the request
it came with. The *ledger* of a sandbox is a row of intervals, one for each stay in a state: from its creation to its
deletion they neither overlap nor leave a gap, whatever crashes in between, and while it lives exactly one, the last, is
open. An open interval ends at the last heartbeat; a closed one is never changed again. An *event* is something that
happened; its number is its place in the order of all.

A sandbox's `last_snapshot` is kept right by the store, whatever it is given: it is the newest recorded snapshot of that
sandbox, else its `from_snapshot` if that is recorded, else None. Every call is whole or not at all, and (but for
`note`) is durable when it returns: a crash right after loses nothing. A call that raises has changed nothing. Calls may
run at the same time; two conditional writes on one sandbox never both succeed from one state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypedDict

from torpor.control.store.access import AccessStore
from torpor.control.store.builds import BuildStore
from torpor.control.store.volumes import VolumeStore
from torpor.model.capacity import Holdings
from torpor.model.ids import SandboxId, SnapshotId, TemplateName, WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.network import NO_NETWORK, Egress
from torpor.model.sandbox import Sandbox
from torpor.model.snapshot import Cost, Kind
from torpor.model.usage import Interval, Reading
from torpor.model.volume import Attachment


@dataclass(frozen=True, slots=True)
class Claim:
    """An idempotency key and the digest of the request it came with."""

    key: str
    digest: str


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """What is recorded of a snapshot, in the words of `model.snapshot.Snapshot`. It may outlive its sandbox.

    `network`, `secret_names` and `volumes` are what its sandbox had when it was taken.
    """

    id: SnapshotId
    workspace: WorkspaceId
    sandbox: SandboxId
    kind: Kind
    template: TemplateName
    created_at: datetime
    cpu: int
    memory_mb: int
    disk_gb: int
    name: str | None = None
    parent: SnapshotId | None = None
    size_bytes: int = 0
    cost: Cost = field(default_factory=Cost)
    network: Egress = NO_NETWORK
    secret_names: tuple[str, ...] = ()
    volumes: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a listing: right after the sandbox or snapshot with this time of creation and id."""

    created_at: datetime
    id: str


@dataclass(frozen=True, slots=True)
class SnapshotListing:
    """Which snapshots of a workspace to list: at most `limit`, of one `sandbox` or of all, behind `after`."""

    workspace: WorkspaceId
    sandbox: SandboxId | None = None
    limit: int = 100
    after: Position | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """Which living sandboxes of a workspace to list: at most `limit`, having all of `metadata`, behind `after`."""

    workspace: WorkspaceId
    limit: int = 100
    metadata: Mapping[str, str] = field(default_factory=dict)
    state: State | None = None
    after: Position | None = None


class Facts(TypedDict, total=False):
    """What may be learned of a sandbox while its state changes."""

    boot_ms: int | None
    reason: str | None
    cpu: int
    memory_mb: int
    disk_gb: int
    from_snapshot: SnapshotId | None
    guest_ip: str | None
    secret_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Boundary:
    """What the ledger and the event of a change of state tell beside the states.

    `verb`: what was done. `reading`: what the sandbox had used by then (None: not known; it is counted later).
    `since`: when the state really changed, where that was before it was noticed (None: just now). It is moved up to the
    sandbox's last heartbeat: the ledger never takes back.
    """

    verb: str | None = None
    reading: Reading | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class NewEvent:
    """Something that happened to a sandbox, to be noted. `data` is made of JSON values, in a form told by `type`."""

    at: datetime
    workspace: WorkspaceId
    sandbox: SandboxId
    type: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event(NewEvent):
    """Something that happened, with its `number`: later events have larger ones, and none is used twice."""

    number: int = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class EventListing:
    """Which events of a workspace to list: at most `limit` behind the number `after`.

    Of one `sandbox` or of all, and of these `types` or of any.
    """

    workspace: WorkspaceId
    sandbox: SandboxId | None = None
    after: int = 0
    limit: int = 100
    types: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AccountListing:
    """Whose accounts to show: of one `sandbox` of a workspace, or of all that have all of `metadata`.

    Only sandboxes that were there between `since` and `until` (None: no bound), and only their intervals in between. At
    most `limit` sandboxes (None: all) behind `after`.
    """

    workspace: WorkspaceId
    sandbox: SandboxId | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    since: datetime | None = None
    until: datetime | None = None
    limit: int | None = None
    after: Position | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """One sandbox, living or deleted (since `deleted_at`), and intervals of its ledger, the earliest first."""

    sandbox: Sandbox
    deleted_at: datetime | None
    intervals: Sequence[Interval]


@dataclass(frozen=True, slots=True)
class Horizons:
    """How far back what is remembered goes.

    `claims`: idempotency keys of sandboxes deleted before it are dropped; `sandboxes`: sandboxes deleted before it are,
    with their ledgers; `events`: events before it are.
    """

    claims: datetime
    sandboxes: datetime
    events: datetime


class Store(AccessStore, BuildStore, VolumeStore, Protocol):
    """See the module; `access` has the keys and the audit log, `builds` the builds of templates, `volumes` volumes."""

    async def add(self, sandbox: Sandbox, claim: Claim | None = None) -> Sandbox:
        """Record a new sandbox, with its claim, and return it; or return the earlier sandbox that holds the claim.

        Its ledger begins at its time of creation, and an event `state` is written. In the second case nothing is
        recorded. A claim whose sandbox is deleted and never ran is free again and is taken over. Raises Conflict if a
        living sandbox of the workspace has the same name, or if the key is held with another digest.
        """

    async def claimed(self, workspace: WorkspaceId, claim: Claim) -> Sandbox | None:
        """Return the sandbox that holds a claim, None if it is free. Raises Conflict if held with another digest."""

    async def get(self, sandbox_id: SandboxId) -> Sandbox | None:
        """Return a sandbox in any state, None if it is not known (or forgotten)."""

    async def move(
        self,
        sandbox_id: SandboxId,
        seen: Collection[State],
        to: State,
        at: datetime,
        facts: Facts | None = None,
        boundary: Boundary | None = None,
    ) -> Sandbox | None:
        """Change the state to `to` if it is one of `seen`, with `facts`, and return the sandbox; else return None.

        `at` is the time of the change; sandboxes deleted before some time can be forgotten by it. With the state, at
        once, the open interval is closed, with what was used since its last reading, the next one begins at that very
        moment (none for `deleted`), and an event `state` says {from, to, verb, reason}, followed by an event `failed`
        if that is what became of it, and not what it was before a rollback that failed.
        """

    async def set_expiry(
        self, sandbox_id: SandboxId, expires_at: datetime | None, ttl_seconds: int | None
    ) -> Sandbox | None:
        """Set the end of life and return the sandbox; return None, changing nothing, if it is deleting or deleted."""

    async def relabel(
        self,
        sandbox_id: SandboxId,
        metadata: Mapping[str, str],
        expires_at: datetime | None,
        ttl_seconds: int | None,
    ) -> Sandbox | None:
        """Set the labels, in the place of all it has, and the end of life, both at once, and return the sandbox.

        Returns None, changing nothing, if it is deleting or deleted.
        """

    async def set_idle(self, sandbox_id: SandboxId, idle_timeout_seconds: int | None) -> Sandbox | None:
        """Set the idle time and return the sandbox; return None, changing nothing, if it is deleting or deleted."""

    async def set_network(self, sandbox_id: SandboxId, network: Egress, guest_ip: str | None) -> Sandbox | None:
        """Set what it may reach, and its address, and return the sandbox.

        Returns None, changing nothing, if it is deleting or deleted.
        """

    async def page(self, listing: Listing) -> list[Sandbox]:
        """Return living sandboxes, the newest first (by time of creation, then id, both descending)."""

    async def holdings(self, workspace: WorkspaceId) -> Holdings:
        """Return what a workspace has: every living sandbox counts, in any state, and every `checkpoint`."""

    async def living(self) -> list[Sandbox]:
        """Return every living sandbox of every workspace, in no order."""

    async def due(self, now: datetime, limit: int) -> list[Sandbox]:
        """Return at most `limit` settled sandboxes that should have ended by `now`, the earliest first."""

    async def next_expiry(self, after: datetime) -> datetime | None:
        """Return the earliest end of life after a moment of a settled sandbox, None if none has one."""

    async def forget(self, horizons: Horizons) -> int:
        """Drop what lies beyond the horizons and return how many sandboxes that were."""

    async def beat(self, at: datetime, readings: Mapping[SandboxId, Reading]) -> None:
        """Bring the open intervals of the sandboxes that there are readings of up to `at`, never back.

        Each takes in what was used since its last reading. Others stay where they are: it is not known of them that
        they were there until now. Readings of what is not living are left out.
        """

    async def accounts(self, listing: AccountListing) -> list[Account]:
        """Return sandboxes with their ledgers, the newest first (by time of creation, then id, both descending)."""

    async def note(self, events: Sequence[NewEvent]) -> None:
        """Write events down in their order. They outlive a crash of the program, and perhaps not one of the machine."""

    async def events(self, listing: EventListing) -> list[Event]:
        """Return a page of events, the earliest first."""

    async def last_event(self) -> int:
        """Return the number of the newest event, 0 if there is none."""

    async def add_snapshot(self, snapshot: SnapshotRecord) -> None:
        """Record a snapshot, with an event `checkpoint`; does nothing if one of its id is recorded already."""

    async def remove_snapshot(self, snapshot_id: SnapshotId) -> None:
        """Drop the record of a snapshot; fine if there is none."""

    async def snapshot(self, snapshot_id: SnapshotId) -> SnapshotRecord | None:
        """Return a snapshot, None if it is not recorded."""

    async def snapshots(self, listing: SnapshotListing) -> list[SnapshotRecord]:
        """Return a page of snapshots, the newest first (by time of creation, then id, both descending)."""

    async def snapshots_of(self, sandbox_id: SandboxId) -> list[SnapshotRecord]:
        """Return every snapshot of one sandbox, the newest first."""

    async def every_snapshot(self) -> list[SnapshotRecord]:
        """Return every snapshot of every workspace, the newest first."""

    async def aclose(self) -> None:
        """Let go of everything held open. Safe to call twice."""
