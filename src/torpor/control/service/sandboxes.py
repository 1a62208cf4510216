"""Looking at sandboxes and setting how long they live."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from torpor.control.reconcile import reconcile_one
from torpor.control.service.chores import Chore
from torpor.control.service.cursors import cursor_after
from torpor.control.service.passage import lost
from torpor.control.service.plane import Plane
from torpor.control.store.contract import Listing
from torpor.errors import Conflict, InvalidRequest, NotFound, OutcomeUnknown, SandboxLost, TorporError
from torpor.model.ids import SandboxId, WorkspaceId, is_sandbox_id
from torpor.model.lifecycle import SETTLED, State
from torpor.model.sandbox import Sandbox
from torpor.wire.public import DEFAULT_TTL_SECONDS, MAX_METADATA, LifecycleChange


@dataclass(frozen=True, slots=True)
class Owned:
    """A sandbox as its owner names it."""

    workspace: WorkspaceId
    id: SandboxId


async def show(plane: Plane, owned: Owned) -> Sandbox:
    """Return a living sandbox. Raises NotFound for one that is unknown, another workspace's or deleted."""
    sandbox = await known(plane, owned)
    if sandbox.state is State.DELETED:
        raise NotFound(f"there is no sandbox {owned.id}: it has been deleted")
    return sandbox


async def known(plane: Plane, owned: Owned) -> Sandbox:
    """Return a sandbox in any state. Raises NotFound for one that is unknown or another workspace's."""
    sandbox = await plane.store.get(owned.id) if is_sandbox_id(owned.id) else None
    if sandbox is None or sandbox.workspace != owned.workspace:
        raise NotFound(f"there is no sandbox {owned.id}")
    return sandbox


@asynccontextmanager
async def in_use(plane: Plane, owned: Owned) -> AsyncIterator[None]:
    """Count a call as using a sandbox while the block lasts. Raises NotFound as `show`.

    Only sandboxes that there are, and are the caller's, get to be counted: what is kept in memory of them is bounded by
    them, and nobody keeps another's sandbox from being idle.
    """
    if not plane.activity.is_owned(owned.id, owned.workspace):
        await show(plane, owned)
        plane.activity.note_owner(owned.id, owned.workspace)
    async with plane.activity.using(owned.id):
        yield


async def settled(plane: Plane, owned: Owned) -> Sandbox:
    """Return a living sandbox after the passage that is under way; if an answer was lost, the host is asked first.

    One that is being put back to its last snapshot after a crash is waited for. Raises NotFound as `show`, and
    HostUnreachable if the host has to be asked and cannot be.
    """
    sandbox = await show(plane, owned)
    if await plane.chores.wait_over(Chore.RECOVERY, owned.id):
        sandbox = await show(plane, owned)
    if sandbox.state not in SETTLED and plane.gate.is_busy(owned.id):
        async with plane.gate.alone(owned.id):
            sandbox = await show(plane, owned)
    if sandbox.state not in SETTLED:
        await reconcile_one(plane, owned.id)
        sandbox = await show(plane, owned)
    if sandbox.state is State.FAILED and await plane.chores.wait_over(Chore.RECOVERY, owned.id):
        sandbox = await show(plane, owned)
    return sandbox


async def standing(plane: Plane, owned: Owned) -> Sandbox:
    """Return a settled sandbox that is not lost. Raises as `settled`, and SandboxLost for a failed one."""
    sandbox = await settled(plane, owned)
    if sandbox.state is State.FAILED:
        raise lost(sandbox)
    return sandbox


@asynccontextmanager
async def noticing_loss(plane: Plane, owned: Owned) -> AsyncIterator[None]:
    """Use a sandbox on its host in the block; if it seems to be gone, find out, and raise SandboxLost if it is.

    NotFound may also mean a file, and a lost answer may have other causes: then it is raised as it is.
    """
    try:
        yield
    except (NotFound, SandboxLost, OutcomeUnknown) as error:
        try:
            await reconcile_one(plane, owned.id)
        except TorporError:
            raise error from None  # the host cannot be asked now; the watcher will
        is_recovering = plane.chores.is_under_way(Chore.RECOVERY, owned.id)
        sandbox = await show(plane, owned)
        if is_recovering:
            gone = lost(sandbox)
            gone.hint = f"it is being put back to its last snapshot {sandbox.last_snapshot}; what came after is lost"
            raise gone from error
        if sandbox.state is not State.FAILED:
            raise
        raise lost(sandbox) from error


async def list_page(plane: Plane, listing: Listing) -> tuple[list[Sandbox], str | None]:
    """Return one page of living sandboxes, the newest first, and the cursor of the next page if there may be one."""
    page = await plane.store.page(listing)
    return page, cursor_after(page[-1]) if len(page) == listing.limit else None


def state_of(text: str) -> State:
    """Return the state with a name. Raises InvalidRequest naming those there are."""
    try:
        return State(text)
    except ValueError as error:
        states = ", ".join(state.value for state in State)
        raise InvalidRequest(f"status has to be one of {states}") from error


async def change_life(plane: Plane, owned: Owned, change: LifecycleChange) -> Sandbox:
    """Set what is given of a sandbox's end and idle time. Raises InvalidRequest for nothing, else as the two setters.

    What is refused of one leaves the other as it is.
    """
    if change.idle_seconds is None:
        return await set_life(plane, owned, change.ttl_seconds, change.persistent)
    if change.ttl_seconds is not None or change.persistent is not None:
        await set_life(plane, owned, change.ttl_seconds, change.persistent)
    return await set_idle(plane, owned, change.idle_seconds)


async def set_life(plane: Plane, owned: Owned, ttl_seconds: int | None, persistent: bool | None) -> Sandbox:
    """Make a sandbox end `ttl_seconds` from now, or never if `persistent`, and return it.

    `persistent` False alone gives one without an end the default ttl, and changes nothing else. Raises InvalidRequest
    for neither or both, NotFound as `show`, Conflict for a sandbox that is being deleted.
    """
    if ttl_seconds is None and persistent is None:
        raise InvalidRequest("ttl_seconds, persistent or idle_seconds is required")
    sandbox = await show(plane, owned)
    ttl = life_of(ttl_seconds, persistent=bool(persistent))
    if ttl_seconds is None and not persistent and sandbox.expires_at is not None:
        return sandbox
    changed = await plane.store.set_expiry(owned.id, expiry(plane.clock.now(), ttl), ttl)
    if changed is None:
        raise deleting(owned)
    plane.bells.expiry.set()
    await plane.deadlines.tell(owned.id)
    return changed


async def set_idle(plane: Plane, owned: Owned, idle_seconds: int) -> Sandbox:
    """Set after how long without use a sandbox is idle, counted from now at the earliest, 0 for never, and return it.

    Raises NotFound as `show`, Conflict for a sandbox that is being deleted.
    """
    async with in_use(plane, owned):  # so that no sweep goes by the wish of before
        await show(plane, owned)
        changed = await plane.store.set_idle(owned.id, idle_seconds or None)
    if changed is None:
        raise deleting(owned)
    plane.bells.idleness.set()
    return changed


def deleting(owned: Owned) -> Conflict:
    """Return the error for changing a sandbox that is being deleted."""
    message = f"sandbox {owned.id} is being deleted"
    return Conflict(message, seen=State.DELETING.value, needed=[State.RUNNING.value])


def life_of(ttl_seconds: int | None, *, persistent: bool) -> int | None:
    """Return the ttl that is meant, in seconds; None is no end. Raises InvalidRequest if both are given."""
    if persistent and ttl_seconds is not None:
        raise InvalidRequest("persistent means no end of life, so it cannot be given together with ttl_seconds")
    if persistent:
        return None
    return DEFAULT_TTL_SECONDS if ttl_seconds is None else ttl_seconds


def expiry(now: datetime, ttl: int | None) -> datetime | None:
    """Return the end of a life of `ttl` seconds that begins now."""
    return None if ttl is None else now + timedelta(seconds=ttl)


def metadata_filter(query: Mapping[str, str]) -> dict[str, str]:
    """Return the pairs that `metadata.<key>=<value>` in a query asks for.

    Raises InvalidRequest for more than a sandbox can have.
    """
    prefix = "metadata."
    asked = {name[len(prefix) :]: value for name, value in query.items() if name.startswith(prefix)}
    if len(asked) > MAX_METADATA:
        raise InvalidRequest(f"{len(asked)} pairs of metadata are asked for, and a sandbox has at most {MAX_METADATA}")
    return asked
