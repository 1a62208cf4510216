"""Quotas: how many sandboxes and snapshots a workspace may have, and how much memory and disk its sandboxes.

Counted from the records when something is to be added, one addition at a time in each workspace, so that no number of
callers at once exceeds a limit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from torpor.control.store.builds import BuildClaim
from torpor.control.store.contract import Store
from torpor.errors import QuotaExceeded
from torpor.kit.environment import is_set, positive
from torpor.kit.locks import KeyedLocks
from torpor.model.builds import Build
from torpor.model.capacity import GIB, MIB, Excess, Holdings, Quota, excess
from torpor.model.ids import BuildId, SnapshotId, WorkspaceId
from torpor.model.sandbox import Sandbox

DEFAULT_SANDBOXES, DEFAULT_SNAPSHOTS = 1000, 10_000
DEFAULT_TEMPLATES, DEFAULT_BUILDS = 100, 20
DEFAULT_VOLUMES, DEFAULT_VOLUME_GIB = 100, 1024

_MENDS = {
    "sandboxes": "delete a sandbox first; those that sleep or have failed count too",
    "memory": "delete a sandbox first; those that sleep or have failed count too, as they may run again",
    "disk": "delete a sandbox first; those that sleep or have failed count too",
    "snapshots": "delete a snapshot first; `torpor snapshots` lists them",
    "templates": "remove a template first, or build one anew under its name; `torpor template list` lists them",
    "volumes": "delete a volume first; `torpor volume list` lists them",
    "volume_space": "delete a volume first; `torpor volume list` lists them",
    "builds": "wait for a build to end, or cancel one; `torpor template builds` lists them",
}


def quota_from_environment() -> Quota:
    """Return what every workspace is held to.

    TORPOR_MAX_SANDBOXES, TORPOR_MAX_SNAPSHOTS, TORPOR_MAX_TEMPLATES, TORPOR_MAX_BUILDS, TORPOR_MAX_VOLUMES
    and TORPOR_MAX_VOLUME_GIB (each); and unless they are unset TORPOR_MAX_SANDBOX_MEMORY_MIB,
    TORPOR_MAX_SANDBOX_DISK_GIB and TORPOR_MAX_VOLUME_SPACE_GIB (together). Raises InvalidRequest.
    """
    memory, disk = "TORPOR_MAX_SANDBOX_MEMORY_MIB", "TORPOR_MAX_SANDBOX_DISK_GIB"
    space = "TORPOR_MAX_VOLUME_SPACE_GIB"
    return Quota(
        sandboxes=positive("TORPOR_MAX_SANDBOXES", DEFAULT_SANDBOXES),
        memory_bytes=positive(memory, 1) * MIB if is_set(memory) else None,
        disk_bytes=positive(disk, 1) * GIB if is_set(disk) else None,
        snapshots=positive("TORPOR_MAX_SNAPSHOTS", DEFAULT_SNAPSHOTS),
        templates=positive("TORPOR_MAX_TEMPLATES", DEFAULT_TEMPLATES),
        builds=positive("TORPOR_MAX_BUILDS", DEFAULT_BUILDS),
        volumes=positive("TORPOR_MAX_VOLUMES", DEFAULT_VOLUMES),
        volume_bytes=positive(space, 1) * GIB if is_set(space) else None,
        volume_size_bytes=positive("TORPOR_MAX_VOLUME_GIB", DEFAULT_VOLUME_GIB) * GIB,
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
        self._sending = defaultdict[WorkspaceId, set[BuildId]](set)

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

    @asynccontextmanager
    async def sending_build(self, workspace: WorkspaceId, build: BuildId, key: str | None) -> AsyncIterator[None]:
        """Count a build as there while the block takes in what is sent for it, and records it.

        Raises QuotaExceeded if it is one too many; not for an idempotency key that an earlier one holds.
        """
        async with self._turns.hold(workspace):
            if key is None or not await self._store.is_build_claimed(workspace, key):
                recorded = {one.id for one in await self._store.open_builds()}
                unrecorded = len(self._sending[workspace] - recorded)
                await self._demand(workspace, Holdings(builds=1), Holdings(builds=unrecorded))
            self._sending[workspace].add(build)
        try:
            yield
        finally:
            self._sending[workspace].discard(build)
            if not self._sending[workspace]:
                del self._sending[workspace]

    async def add_build(self, build: Build, claim: BuildClaim | None) -> Build:
        """Record a build, as the store does. Raises QuotaExceeded if it would make one template too many."""
        async with self._turns.hold(build.workspace):
            is_sent_again = claim is not None and await self._store.is_build_claimed(build.workspace, claim.key)
            if not build.is_global and not is_sent_again:
                there = {own.name for own in await self._store.own_templates(build.workspace)}
                waiting = [one for one in await self._store.open_builds() if one.workspace == build.workspace]
                coming = {one.name for one in waiting if not one.is_global} - there
                if build.name not in there | coming:
                    await self._demand(build.workspace, Holdings(templates=1), Holdings(templates=len(coming)))
            return await self._store.add_build(build, claim)

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
