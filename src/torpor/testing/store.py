"""A store in memory: the twin of `torpor.control.store.sql`, held to the same tests."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from torpor.control.store.contract import (
    Account,
    AccountListing,
    Boundary,
    Claim,
    Event,
    EventListing,
    Facts,
    Horizons,
    Listing,
    NewEvent,
    Position,
    SnapshotListing,
    SnapshotRecord,
)
from torpor.control.store.rules import claim_is_free, name_taken, other_request, snapshot_event
from torpor.model.capacity import GIB, MIB, Holdings
from torpor.model.ids import SandboxId, SnapshotId, WorkspaceId
from torpor.model.lifecycle import SETTLED, State
from torpor.model.network import Egress
from torpor.model.sandbox import Sandbox
from torpor.model.snapshot import Kind
from torpor.model.usage import Reading
from torpor.testing.store_access import MemoryAccess
from torpor.testing.store_builds import MemoryBuilds
from torpor.testing.store_ledger import MemoryLedger
from torpor.testing.store_volumes import MemoryVolumes

_MORTAL = SETTLED - {State.DELETED}


class MemoryStore(MemoryBuilds, MemoryAccess, MemoryVolumes):
    """A `Store` that lives as long as the object. Each call gives way once, as a real store does."""

    def __init__(self) -> None:
        super().__init__()
        self._sandboxes: dict[SandboxId, Sandbox] = {}
        self._changed_at: dict[SandboxId, datetime] = {}
        self._snapshots: dict[SnapshotId, SnapshotRecord] = {}
        self._claims: dict[tuple[WorkspaceId, str], tuple[str, SandboxId]] = {}
        self._ledger = MemoryLedger()

    async def add(self, sandbox: Sandbox, claim: Claim | None = None) -> Sandbox:
        await asyncio.sleep(0)
        holder = self._holder(sandbox.workspace, claim) if claim is not None else None
        if holder is not None:
            return holder
        if sandbox.name is not None and any(self._clashes(sandbox, other) for other in self._living()):
            raise name_taken(sandbox)
        self._sandboxes[sandbox.id] = sandbox
        self._changed_at[sandbox.id] = sandbox.created_at
        if claim is not None:
            self._claims[sandbox.workspace, claim.key] = (claim.digest, sandbox.id)
        self._ledger.begin(sandbox)
        return self._looked_back(sandbox.id)

    async def claimed(self, workspace: WorkspaceId, claim: Claim) -> Sandbox | None:
        await asyncio.sleep(0)
        return self._holder(workspace, claim)

    async def get(self, sandbox_id: SandboxId) -> Sandbox | None:
        await asyncio.sleep(0)
        return self._sandboxes.get(sandbox_id)

    async def move(
        self,
        sandbox_id: SandboxId,
        seen: Collection[State],
        to: State,
        at: datetime,
        facts: Facts | None = None,
        boundary: Boundary | None = None,
    ) -> Sandbox | None:
        await asyncio.sleep(0)
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None or sandbox.state not in seen:
            return None
        self._changed_at[sandbox_id] = at
        self._sandboxes[sandbox_id] = replace(sandbox, state=to, **(facts or {}))
        self._ledger.turn(self._sandboxes[sandbox_id], at, boundary or Boundary())
        return self._looked_back(sandbox_id)

    async def set_expiry(
        self, sandbox_id: SandboxId, expires_at: datetime | None, ttl_seconds: int | None
    ) -> Sandbox | None:
        await asyncio.sleep(0)
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None or sandbox.state in (State.DELETING, State.DELETED):
            return None
        self._sandboxes[sandbox_id] = replace(sandbox, expires_at=expires_at, ttl_seconds=ttl_seconds)
        return self._sandboxes[sandbox_id]

    async def relabel(
        self,
        sandbox_id: SandboxId,
        metadata: Mapping[str, str],
        expires_at: datetime | None,
        ttl_seconds: int | None,
    ) -> Sandbox | None:
        await asyncio.sleep(0)
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None or sandbox.state in (State.DELETING, State.DELETED):
            return None
        self._sandboxes[sandbox_id] = replace(
            sandbox, metadata=dict(metadata), expires_at=expires_at, ttl_seconds=ttl_seconds
        )
        return self._sandboxes[sandbox_id]

    async def set_idle(self, sandbox_id: SandboxId, idle_timeout_seconds: int | None) -> Sandbox | None:
        await asyncio.sleep(0)
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None or sandbox.state in (State.DELETING, State.DELETED):
            return None
        care = replace(sandbox.care, idle_timeout_seconds=idle_timeout_seconds)
        self._sandboxes[sandbox_id] = replace(sandbox, care=care)
        return self._sandboxes[sandbox_id]

    async def set_network(self, sandbox_id: SandboxId, network: Egress, guest_ip: str | None) -> Sandbox | None:
        await asyncio.sleep(0)
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None or sandbox.state in (State.DELETING, State.DELETED):
            return None
        self._sandboxes[sandbox_id] = replace(sandbox, network=network, guest_ip=guest_ip)
        return self._sandboxes[sandbox_id]

    async def page(self, listing: Listing) -> list[Sandbox]:
        await asyncio.sleep(0)
        found = sorted(self._living(), key=lambda one: (one.created_at, one.id), reverse=True)
        return [one for one in found if self._matches(one, listing)][: listing.limit]

    async def holdings(self, workspace: WorkspaceId) -> Holdings:
        await asyncio.sleep(0)
        own = [one for one in self._living() if one.workspace == workspace]
        kept = [one for one in self._snapshots.values() if one.workspace == workspace and one.kind is Kind.CHECKPOINT]
        memory, disk = sum(one.memory_mb for one in own), sum(one.disk_gb for one in own)
        templates = len(await self.own_templates(workspace))
        builds = sum(one.is_open for one in self._builds_of(workspace))
        volumes = await self.volumes(workspace)
        size = sum(one.size_mb for one in volumes) * MIB
        return Holdings(len(own), memory * MIB, disk * GIB, len(kept), templates, builds, len(volumes), size)

    async def living(self) -> list[Sandbox]:
        await asyncio.sleep(0)
        return self._living()

    async def due(self, now: datetime, limit: int) -> list[Sandbox]:
        await asyncio.sleep(0)
        ends = sorted((end, one.id) for one, end in self._mortal() if end <= now)
        return [self._sandboxes[sandbox_id] for _, sandbox_id in ends[:limit]]

    async def next_expiry(self, after: datetime) -> datetime | None:
        await asyncio.sleep(0)
        return min((end for _, end in self._mortal() if end > after), default=None)

    async def forget(self, horizons: Horizons) -> int:
        await asyncio.sleep(0)
        unclaimed = self._deleted_before(horizons.claims)
        self._claims = {key: held for key, held in self._claims.items() if held[1] not in unclaimed}
        old = self._deleted_before(horizons.sandboxes)
        for sandbox_id in old:
            del self._sandboxes[sandbox_id], self._changed_at[sandbox_id]
        self._claims = {key: held for key, held in self._claims.items() if held[1] not in old}
        self._ledger.forget(old, horizons.events)
        return len(old)

    async def beat(self, at: datetime, readings: Mapping[SandboxId, Reading]) -> None:
        await asyncio.sleep(0)
        self._ledger.beat(at, readings)

    async def accounts(self, listing: AccountListing) -> list[Account]:
        await asyncio.sleep(0)
        newest_first = sorted(self._sandboxes.values(), key=lambda one: (one.created_at, one.id), reverse=True)
        accounts = [self._account(sandbox, listing) for sandbox in newest_first]
        return [account for account in accounts if _is_asked_for(account, listing)][: listing.limit]

    async def note(self, events: Sequence[NewEvent]) -> None:
        await asyncio.sleep(0)
        self._ledger.note(events)

    async def events(self, listing: EventListing) -> list[Event]:
        await asyncio.sleep(0)
        return self._ledger.events(listing)

    async def last_event(self) -> int:
        await asyncio.sleep(0)
        return self._ledger.last_event()

    async def add_snapshot(self, snapshot: SnapshotRecord) -> None:
        await asyncio.sleep(0)
        if snapshot.id not in self._snapshots:
            self._snapshots[snapshot.id] = snapshot
            self._ledger.note([snapshot_event(snapshot)])
        self._look_back()

    async def remove_snapshot(self, snapshot_id: SnapshotId) -> None:
        await asyncio.sleep(0)
        self._snapshots.pop(snapshot_id, None)
        self._look_back()

    async def snapshot(self, snapshot_id: SnapshotId) -> SnapshotRecord | None:
        await asyncio.sleep(0)
        return self._snapshots.get(snapshot_id)

    async def snapshots(self, listing: SnapshotListing) -> list[SnapshotRecord]:
        await asyncio.sleep(0)
        found = [one for one in self._newest_first() if one.workspace == listing.workspace]
        of_sandbox = [one for one in found if listing.sandbox in (None, one.sandbox)]
        return [one for one in of_sandbox if _is_behind(one, listing.after)][: listing.limit]

    async def snapshots_of(self, sandbox_id: SandboxId) -> list[SnapshotRecord]:
        await asyncio.sleep(0)
        return [one for one in self._newest_first() if one.sandbox == sandbox_id]

    async def every_snapshot(self) -> list[SnapshotRecord]:
        await asyncio.sleep(0)
        return self._newest_first()

    async def aclose(self) -> None:
        await asyncio.sleep(0)

    def _newest_first(self) -> list[SnapshotRecord]:
        return sorted(self._snapshots.values(), key=lambda one: (one.created_at, one.id), reverse=True)

    def _look_back(self) -> None:
        for sandbox_id in self._sandboxes:
            self._looked_back(sandbox_id)

    def _looked_back(self, sandbox_id: SandboxId) -> Sandbox:
        sandbox = self._sandboxes[sandbox_id]
        own = [one.id for one in self._newest_first() if one.sandbox == sandbox_id]
        origin = sandbox.from_snapshot if sandbox.from_snapshot in self._snapshots else None
        self._sandboxes[sandbox_id] = replace(sandbox, last_snapshot=own[0] if own else origin)
        return self._sandboxes[sandbox_id]

    def _holder(self, workspace: WorkspaceId, claim: Claim) -> Sandbox | None:
        held = self._claims.get((workspace, claim.key))
        if held is None or claim_is_free(holder := self._sandboxes[held[1]]):
            return None
        if held[0] != claim.digest:
            raise other_request(claim, holder)
        return holder

    def _deleted_before(self, horizon: datetime) -> set[SandboxId]:
        deleted = [one.id for one in self._sandboxes.values() if one.state is State.DELETED]
        return {sandbox_id for sandbox_id in deleted if self._changed_at[sandbox_id] < horizon}

    def _account(self, sandbox: Sandbox, listing: AccountListing) -> Account:
        ended = self._changed_at[sandbox.id] if sandbox.state is State.DELETED else None
        return Account(sandbox, ended, self._ledger.intervals(sandbox.id, listing))

    def _living(self) -> list[Sandbox]:
        return [one for one in self._sandboxes.values() if one.state is not State.DELETED]

    def _mortal(self) -> list[tuple[Sandbox, datetime]]:
        living = [one for one in self._sandboxes.values() if one.state in _MORTAL]
        return [(one, one.expires_at) for one in living if one.expires_at is not None]

    @staticmethod
    def _clashes(sandbox: Sandbox, other: Sandbox) -> bool:
        return (other.workspace, other.name) == (sandbox.workspace, sandbox.name)

    @staticmethod
    def _matches(sandbox: Sandbox, listing: Listing) -> bool:
        return (
            sandbox.workspace == listing.workspace
            and (listing.state is None or sandbox.state is listing.state)
            and all(sandbox.metadata.get(key) == value for key, value in listing.metadata.items())
            and _is_behind(sandbox, listing.after)
        )


def _is_behind(one: Sandbox | SnapshotRecord, after: Position | None) -> bool:
    return after is None or (one.created_at, one.id) < (after.created_at, after.id)


def _is_asked_for(account: Account, listing: AccountListing) -> bool:
    sandbox = account.sandbox
    return (
        sandbox.workspace == listing.workspace
        and listing.sandbox in (None, sandbox.id)
        and all(sandbox.metadata.get(key) == value for key, value in listing.metadata.items())
        and (listing.since is None or account.deleted_at is None or account.deleted_at > listing.since)
        and (listing.until is None or sandbox.created_at < listing.until)
        and _is_behind(sandbox, listing.after)
    )
