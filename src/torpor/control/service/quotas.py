"""Quotas: how many sandboxes and snapshots a workspace may have, and how much memory and disk its sandboxes.

Counted from the records when something is to be added, one addition at a time in each workspace, so that no number of
callers at once exceeds a limit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from torpor.control.store.contract import Store
from torpor.errors import QuotaExceeded
from torpor.kit.environment import is_set, positive
from torpor.kit.locks import KeyedLocks
from torpor.model.capacity import GIB, MIB, Excess, Holdings, Quota, excess
from torpor.model.ids import SnapshotId, WorkspaceId
from torpor.model.sandbox import Sandbox

DEFAULT_SANDBOXES, DEFAULT_SNAPSHOTS = 1000, 10_000

_MENDS = {
    "sandboxes": "delete a sandbox first; those that sleep or have failed count too",
    "memory": "delete a sandbox first; those that sleep or have failed count too, as they may run again",
    "disk": "delete a sandbox first; those that sleep or have failed count too",
    "snapshots": "delete a snapshot first; `torpor snapshots` lists them",
}


def quota_from_environment() -> Quota:
    """Return what every workspace is held to.

    TORPOR_MAX_SANDBOXES and TORPOR_MAX_SNAPSHOTS, and unless they are unset TORPOR_MAX_SANDBOX_MEMORY_MIB and
    TORPOR_MAX_SANDBOX_DISK_GIB. Raises InvalidRequest.
    """
    memory, disk = "TORPOR_MAX_SANDBOX_MEMORY_MIB", "TORPOR_MAX_SANDBOX_DISK_GIB"
    return Quota(
        sandboxes=positive("TORPOR_MAX_SANDBOXES", DEFAULT_SANDBOXES),
        memory_bytes=positive(memory, 1) * MIB if is_set(memory) else None,
        disk_bytes=positive(disk, 1) * GIB if is_set(disk) else None,
        snapshots=positive("TORPOR_MAX_SNAPSHOTS", DEFAULT_SNAPSHOTS),
    )


def holdings_of(sandboxes: Sequence[Sandbox]) -> Holdings:
    """Return what sandboxes that are about to be recorded add to what their workspace has."""
    memory, disk = sum(one.memory_mb for one in sandboxes), sum(one.disk_gb for one in sandboxes)
    return Holdings(len(sandboxes), memory * MIB, disk * GIB)


class Quotas:
    """Holds every workspace to one quota."""

    def __init__(self, store: Store, quota: Quota) -> None:
        self.quota = quota
        self._store = store
        self._turns = KeyedLocks[WorkspaceId]()
        self._under_way = defaultdict[WorkspaceId, Counter[SnapshotId]](Counter)

    @asynccontextmanager
    async def turn(self, workspace: WorkspaceId, wanted: Holdings) -> AsyncIterator[AsyncExitStack]:
        """Be the only one who adds sandboxes to a workspace, until the block ends or the stack that it gets is closed.

        That is for the block to do as soon as all of them are recorded. Raises QuotaExceeded if `wanted` is too much.
        """
        async with AsyncExitStack() as turn:
            await turn.enter_async_context(self._turns.hold(workspace))
            await self._demand(workspace, wanted)
            yield turn

    @asynccontextmanager
    async def adding_snapshot(self, workspace: WorkspaceId, snapshot: SnapshotId) -> AsyncIterator[None]:
        """Count a snapshot as there while the block makes and records it; one that is there already counts once.

        Raises QuotaExceeded if it is one too many.
        """
        async with self._turns.hold(workspace):
            others = [other for other in self._under_way[workspace] if other != snapshot]
            # What was recorded just now is counted by the store.
            unrecorded = [other for other in others if await self._store.snapshot(other) is None]
            if snapshot not in self._under_way[workspace] and await self._store.snapshot(snapshot) is None:
                await self._demand(workspace, Holdings(snapshots=1), Holdings(snapshots=len(unrecorded)))
            self._under_way[workspace][snapshot] += 1
        try:
            yield
        finally:
            self._under_way[workspace] -= Counter([snapshot])
            if not self._under_way[workspace]:
                del self._under_way[workspace]

    async def _demand(self, workspace: WorkspaceId, wanted: Holdings, beside: Holdings | None = None) -> None:
        held = await self._store.holdings(workspace)
        if (found := excess(self.quota, held + (beside or Holdings()), wanted)) is not None:
            raise _refusal(found)


def _refusal(found: Excess) -> QuotaExceeded:
    return QuotaExceeded(
        f"the workspace's limit of {found.resource} is used up: {found}",
        resource=found.resource,
        limit=found.limit,
        used=found.used,
        hint=_MENDS[found.resource],
    )
