"""What the control plane remembers, and what holds after each call: the contract both stores keep.

Words: *living* is every sandbox that is not `deleted`; a *claim* ties an idempotency key of a workspace to the request
it came with. A sandbox's `last_snapshot` is kept right by the store, whatever it is given: it is the newest recorded
snapshot of that sandbox, else its `from_snapshot` if that is recorded, else None. Every call is whole or not at all,
and is durable when it returns: a crash right after loses nothing. A call that raises has changed nothing. Calls may run
at the same time; two conditional writes on one sandbox never both succeed from one state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, TypedDict

from torpor.model.ids import SandboxId, SnapshotId, TemplateName, WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox
from torpor.model.snapshot import Cost, Kind


@dataclass(frozen=True, slots=True)
class Claim:
    """An idempotency key and the digest of the request it came with."""

    key: str
    digest: str


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """What is recorded of a snapshot, in the words of `model.snapshot.Snapshot`. It may outlive its sandbox."""

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


class Store(Protocol):
    """See the module."""

    async def add(self, sandbox: Sandbox, claim: Claim | None = None) -> Sandbox:
        """Record a new sandbox, with its claim, and return it; or return the earlier sandbox that holds the claim.

        In the second case nothing is recorded. A claim whose sandbox is deleted and never ran is free again and is
        taken over. Raises Conflict if a living sandbox of the workspace has the same name, or if the key is held with
        another digest.
        """

    async def claimed(self, workspace: WorkspaceId, claim: Claim) -> Sandbox | None:
        """Return the sandbox that holds a claim, None if it is free. Raises Conflict if held with another digest."""

    async def get(self, sandbox_id: SandboxId) -> Sandbox | None:
        """Return a sandbox in any state, None if it is not known (or forgotten)."""

    async def move(
        self, sandbox_id: SandboxId, seen: Collection[State], to: State, at: datetime, facts: Facts | None = None
    ) -> Sandbox | None:
        """Change the state to `to` if it is one of `seen`, with `facts`, and return the sandbox; else return None.

        `at` is the time of the change; sandboxes deleted before some time can be forgotten by it.
        """

    async def set_expiry(
        self, sandbox_id: SandboxId, expires_at: datetime | None, ttl_seconds: int | None
    ) -> Sandbox | None:
        """Set the end of life and return the sandbox; return None, changing nothing, if it is deleting or deleted."""

    async def page(self, listing: Listing) -> list[Sandbox]:
        """Return living sandboxes, the newest first (by time of creation, then id, both descending)."""

    async def living(self) -> list[Sandbox]:
        """Return every living sandbox of every workspace, in no order."""

    async def due(self, now: datetime, limit: int) -> list[Sandbox]:
        """Return at most `limit` settled sandboxes that should have ended by `now`, the earliest first."""

    async def next_expiry(self) -> datetime | None:
        """Return the earliest end of life of a settled sandbox, None if none has one."""

    async def forget(self, before: datetime) -> int:
        """Drop the sandboxes deleted before a time, and their claims; return how many."""

    async def add_snapshot(self, snapshot: SnapshotRecord) -> None:
        """Record a snapshot; does nothing if one of its id is recorded already."""

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
