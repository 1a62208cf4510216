"""Fork: living copies of a sandbox, all from one instant of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import structlog

from torpor.control.service.claims import claim_for, served_before, unless_claimed
from torpor.control.service.deadlines import deadline_of
from torpor.control.service.freeze import freeze
from torpor.control.service.hibernate import sleeps_in
from torpor.control.service.kinship import as_tree, metadata_of_child, ttl_of_child
from torpor.control.service.passage import Crossing, facts_of
from torpor.control.service.plane import Plane
from torpor.control.service.quotas import holdings_of
from torpor.control.service.reach import asked_for, chosen, order_of
from torpor.control.service.sandboxes import Owned, expiry, in_use, show, standing
from torpor.control.service.secrets import names_of, told_of, values_of
from torpor.control.service.snapshots import delete_snapshot, tidy
from torpor.control.store.contract import Claim
from torpor.errors import Busy, Conflict, TorporError
from torpor.kit.shielded import shielded
from torpor.model.ids import SandboxId, SnapshotId, new_sandbox_id, new_snapshot_id, sibling_id
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox
from torpor.model.snapshot import Kind
from torpor.model.volume import copies
from torpor.wire import host
from torpor.wire.public import ForkSandbox

_log = structlog.get_logger("torpor.control")

# Children that come to life at the same time.
_AT_ONCE = 16
# How long the host holds room for them, in seconds: longer than a freeze of the parent takes.
_HELD_S = 1900.0
# The parent may fall asleep or wake between being looked at and being held.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Source:
    """What children come to life from: a snapshot, or (`sleeper`) what the parent sleeps in; and with which secrets."""

    snapshot: SnapshotId | None
    sleeper: SandboxId | None = None
    secrets: dict[str, str] | None = field(default=None, repr=False)

    def order(self, child: Sandbox) -> host.Restore:
        """Return the order that brings one child to life."""
        snapshot = self.snapshot if self.sleeper is None else None
        return host.Restore(
            id=child.id,
            snapshot=snapshot,
            sleeper=self.sleeper,
            secrets=self.secrets,
            network=order_of(child.network),
            deadline=deadline_of(child),
        )


async def fork(
    plane: Plane, owned: Owned, wish: ForkSandbox, key: str | None = None, *, is_tree: bool = False
) -> list[Sandbox]:
    """Bring children of a running, paused or hibernated sandbox to life and return them, the first first.

    Of a tree they have its labels. All of them or none: if one definitely fails, nothing is left, and the parent is as
    it was in any case. For an idempotency key that was used before, the children of then are returned. Raises
    InvalidRequest, NotFound, SandboxLost, Conflict, QuotaExceeded, and what the host raises.
    """
    asked = asked_for(wish.network)
    claim = _claim(plane, owned, wish, key, is_tree=is_tree)
    while True:
        if claim is not None and (held := await plane.store.claimed(owned.workspace, claim)) is not None:
            if (first := await served_before(plane, held, claim)) is not None:
                return await _children_of_then(plane, first, wish)
            continue
        parent = await standing(plane, owned)
        children = _children(plane, parent, wish, is_tree=is_tree)
        network = await chosen(plane, asked, parent.network)
        children = [replace(child, network=network) for child in children]
        async with in_use(plane, owned):
            making = _bring_to_life(plane, owned, children, values_of(wish.secrets), claim)
            made = await unless_claimed(plane, owned.workspace, claim, making)
        if made is not None:
            return made


def _claim(plane: Plane, owned: Owned, wish: ForkSandbox, key: str | None, *, is_tree: bool) -> Claim | None:
    told = wish.model_dump(mode="json", exclude={"secrets", "network"})
    if wish.secrets is not None:
        told["secrets"] = told_of(wish.secrets)
    if wish.network is not None:
        told |= wish.model_dump(mode="json", include={"network"})
    hidden = {"secrets": values_of(wish.secrets)} if wish.secrets else {}
    return claim_for(plane, {"fork_tree" if is_tree else "fork": owned.id, **told}, hidden, key)


def _children(plane: Plane, parent: Sandbox, wish: ForkSandbox, *, is_tree: bool) -> list[Sandbox]:
    """Return the records to begin with. The ids of the others follow from the first one's."""
    ttl = ttl_of_child(parent, wish, is_tree=is_tree)
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
        metadata=metadata_of_child(parent, wish),
        parent=parent.id,
        care=parent.care,
        secret_names=names_of(wish.secrets, parent.secret_names),
        has_own_secrets=wish.secrets is not None,
        volumes=copies(parent.volumes),
    )
    children = [first, *(replace(first, id=sibling) for sibling in _siblings(first.id, wish))]
    return as_tree(children, parent.id) if is_tree else children


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
    plane: Plane, owned: Owned, children: list[Sandbox], secrets: dict[str, str] | None, claim: Claim | None
) -> list[Sandbox] | None:
    """Return the children, or None if somebody took the claim meanwhile."""
    async with AsyncExitStack() as passages:
        turn = await passages.enter_async_context(plane.quotas.turn(owned.workspace, holdings_of(children)))
        # The first is outermost, and so settles last: who waits for it has waited for all.
        first = await passages.enter_async_context(plane.gate.creation(children[0], claim))
        if first.holds:
            return None
        others = [await passages.enter_async_context(plane.gate.creation(child, None)) for child in children[1:]]
        await turn.aclose()  # they are on record, and count
        crossings = [first, *others]
        await passages.enter_async_context(_room(plane, children))
        source = await passages.enter_async_context(_source(plane, owned))
        await _all(plane, replace(source, secrets=secrets), crossings)
    await tidy(plane, owned.id)
    return [crossing.sandbox for crossing in crossings]


@asynccontextmanager
async def _room(plane: Plane, children: list[Sandbox]) -> AsyncIterator[None]:
    """Have the host hold room for all children while the block brings them to life, or none of them begins.

    If the block fails, all of them are closed on the host. Raises NoCapacity, OutOfSpace.
    """
    ids = [child.id for child in children]
    try:
        await plane.host.reserve(
            host.Reserve(ids=list(ids), memory_mb=children[0].memory_mb, disk_gb=children[0].disk_gb, for_s=_HELD_S)
        )
        yield
    except BaseException:
        await shielded(_close(plane, ids))  # which gives up what is held, too
        raise


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


async def _all(plane: Plane, source: Source, crossings: list[Crossing]) -> None:
    """Bring every child to life, and raise the first failure."""
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
