"""Fork: living copies of a sandbox, all from one instant of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import structlog

from torpor.control.service.claims import claim_for, served_before
from torpor.control.service.deadlines import deadline_of
from torpor.control.service.freeze import freeze
from torpor.control.service.hibernate import sleeps_in
from torpor.control.service.passage import Crossing, facts_of
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, expiry, in_use, life_of, show, standing
from torpor.control.service.snapshots import delete_snapshot, tidy
from torpor.control.store.contract import Claim
from torpor.errors import Busy, Conflict, InvalidRequest, TorporError
from torpor.kit.shielded import shielded
from torpor.model.ids import SandboxId, SnapshotId, new_sandbox_id, new_snapshot_id, sibling_id
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox
from torpor.model.snapshot import Kind
from torpor.wire import host
from torpor.wire.public import MAX_METADATA, ForkSandbox

_log = structlog.get_logger("torpor.control")

# Children that come to life at the same time.
_AT_ONCE = 16
# The parent may fall asleep or wake between being looked at and being held.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Source:
    """What children come to life from: a snapshot, or (`sleeper`) what the parent sleeps in."""

    snapshot: SnapshotId | None
    sleeper: SandboxId | None = None

    def order(self, child: Sandbox) -> host.Restore:
        """Return the order that brings one child to life."""
        snapshot = self.snapshot if self.sleeper is None else None
        return host.Restore(id=child.id, snapshot=snapshot, sleeper=self.sleeper, deadline=deadline_of(child))


async def fork(plane: Plane, owned: Owned, wish: ForkSandbox, key: str | None = None) -> list[Sandbox]:
    """Bring children of a running, paused or hibernated sandbox to life and return them, the first first.

    All of them or none: if one definitely fails, nothing is left, and the parent is as it was in any case. For an
    idempotency key that was used before, the children of then are returned. Raises InvalidRequest, NotFound,
    SandboxLost, Conflict, and what the host raises.
    """
    claim = claim_for({"fork": owned.id, **wish.model_dump(mode="json")}, key)
    while True:
        if claim is not None and (held := await plane.store.claimed(owned.workspace, claim)) is not None:
            if (first := await served_before(plane, held, claim)) is not None:
                return await _children_of_then(plane, first, wish)
            continue
        children = _children(plane, await standing(plane, owned), wish)
        async with in_use(plane, owned):
            made = await _bring_to_life(plane, owned, children, claim)
        if made is not None:
            return made


def _children(plane: Plane, parent: Sandbox, wish: ForkSandbox) -> list[Sandbox]:
    """Return the records to begin with. The ids of the others follow from the first one's."""
    metadata = {**parent.metadata, **wish.metadata}
    if len(metadata) > MAX_METADATA:
        message = (
            f"with the parent's, a child would have {len(metadata)} pairs of metadata, and at most {MAX_METADATA} fit"
        )
        raise InvalidRequest(message)
    ttl = parent.ttl_seconds
    if wish.persistent or wish.ttl_seconds is not None:
        ttl = life_of(wish.ttl_seconds, persistent=wish.persistent)
    now = plane.clock.now()
    first = Sandbox(
        id=new_sandbox_id(),
        workspace=parent.workspace,
        template=parent.template,
        state=State.CREATING,
        created_at=now,
        cpu=parent.cpu,
        memory_mb=parent.memory_mb,
        disk_gb=parent.disk_gb,
        expires_at=expiry(now, ttl),
        ttl_seconds=ttl,
        metadata=metadata,
        parent=parent.id,
        care=parent.care,
    )
    return [first, *(replace(first, id=sibling) for sibling in _siblings(first.id, wish))]


def _siblings(first: SandboxId, wish: ForkSandbox) -> list[SandboxId]:
    return [sibling_id(first, number) for number in range(1, wish.count or 1)]


async def _children_of_then(plane: Plane, first: Sandbox, wish: ForkSandbox) -> list[Sandbox]:
    children = [first]
    for sibling in _siblings(first.id, wish):
        child = await plane.store.get(sibling)
        if child is None or child.state in (State.DELETING, State.DELETED):
            message = f"sandbox {sibling}, made with this idempotency key, has been deleted since"
            raise Conflict(message, hint="use a fresh key to fork again")
        children.append(child)
    return children


async def _bring_to_life(
    plane: Plane, owned: Owned, children: list[Sandbox], claim: Claim | None
) -> list[Sandbox] | None:
    """Return the children, or None if somebody took the claim meanwhile."""
    async with AsyncExitStack() as passages:
        # The first is outermost, and so settles last: who waits for it has waited for all.
        first = await passages.enter_async_context(plane.gate.creation(children[0], claim))
        if first.holds:
            return None
        others = [await passages.enter_async_context(plane.gate.creation(child, None)) for child in children[1:]]
        crossings = [first, *others]
        source = await passages.enter_async_context(_source(plane, owned))
        await _all_or_none(plane, source, crossings)
    await tidy(plane, owned.id)
    return [crossing.sandbox for crossing in crossings]


@asynccontextmanager
async def _source(plane: Plane, owned: Owned) -> AsyncIterator[Source]:
    """Hold what the children come to life from while the block runs; if it fails, a snapshot made for it is removed.

    A parent that sleeps goes on sleeping, and cannot be woken meanwhile. Raises as `standing` and `freeze` do.
    """
    for _ in range(_TRIES):
        if (await standing(plane, owned)).state is not State.HIBERNATED:
            snapshot_id = new_snapshot_id()
            with plane.shelf.using(snapshot_id):
                if not await _frozen(plane, owned, snapshot_id):
                    continue
                try:
                    yield Source(snapshot_id)
                except BaseException:
                    await shielded(_remove(plane, owned, snapshot_id))
                    raise
                return
        async with plane.gate.alone(owned.id):
            if (await show(plane, owned)).state is State.HIBERNATED:
                yield Source(await sleeps_in(plane, owned), owned.id)
                return
    raise Busy(f"sandbox {owned.id} falls asleep and wakes again and again")


async def _frozen(plane: Plane, owned: Owned, snapshot_id: SnapshotId) -> bool:
    """Freeze the parent and tell that it is; False if it fell asleep before."""
    try:
        await freeze(plane, owned, host.Freeze(id=snapshot_id, kind=Kind.FORK.value))
    except Conflict as error:
        if error.seen == State.HIBERNATED:
            return False
        raise
    return True


async def _remove(plane: Plane, owned: Owned, snapshot_id: SnapshotId) -> None:
    try:
        await delete_snapshot(plane, owned.workspace, snapshot_id)
    except TorporError as error:  # the next fork's tidying removes it
        _log.warning("not removed", snapshot=snapshot_id, error=error.message)


async def _all_or_none(plane: Plane, source: Source, crossings: list[Crossing]) -> None:
    """Bring every child to life; if one fails, close them all on the host, and raise the first failure."""
    try:
        await _all(plane, source, crossings)
    except BaseException:
        await shielded(_close(plane, [crossing.sandbox.id for crossing in crossings]))
        raise


async def _all(plane: Plane, source: Source, crossings: list[Crossing]) -> None:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def restored(crossing: Crossing) -> TorporError | None:
        try:
            async with limit:
                born = await plane.host.restore(source.order(crossing.sandbox))
        except TorporError as error:  # the others come to their ends first, so that closing them finds them whole
            return error
        crossing.learn(**facts_of(born))
        crossing.learn(from_snapshot=source.snapshot)
        return None

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(restored(crossing)) for crossing in crossings]
    failures = [failure for task in tasks if (failure := task.result()) is not None]
    if failures:
        raise failures[0]


async def _close(plane: Plane, children: list[SandboxId]) -> None:
    for child in children:
        try:
            await plane.host.close(child)
        except TorporError as error:  # the reconciler closes what nobody owns
            _log.warning("child not closed", sandbox=child, error=error.message)
