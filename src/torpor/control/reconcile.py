"""Compares what is recorded with what lives on the host, and mends the difference.

Level-triggered: it looks at how things stand, never at what happened, so it may run at any time and as often as it
likes.
"""

from __future__ import annotations

import itertools
from datetime import datetime
from enum import Enum

import structlog

from torpor.control.rounds import rung_or_slept
from torpor.control.service.attempts import AT_MOST, WITHIN_S
from torpor.control.service.passage import facts_of, reading_of
from torpor.control.service.plane import Plane
from torpor.control.service.reach import order_of
from torpor.control.service.recovery import begin_recoveries, begin_recovery, wishes_recovery
from torpor.control.service.secrets import names_after
from torpor.control.service.shelf import superfluous
from torpor.control.service.snapshots import keep, tidy
from torpor.control.service.volumes import reconcile_volumes
from torpor.control.store.contract import Facts
from torpor.errors import TorporError
from torpor.model.ids import SandboxId, SnapshotId, sibling_id
from torpor.model.lifecycle import DELETE, State
from torpor.model.sandbox import Sandbox
from torpor.model.snapshot import Kind
from torpor.wire.host import Incarnation

_log = structlog.get_logger("torpor.control")

_SHELF_ROUNDS = 15


class Verdict(Enum):
    """What a difference calls for."""

    NOTHING = "nothing"
    RUNS = "record that it runs"
    STANDS = "record that it is paused"
    SLEEPS = "record that it sleeps"
    TELL = "tell the host what it may reach"
    LOST = "record that its machine is gone"
    CLOSE = "close it on the host and record that it is deleted"
    STRAY = "close it on the host, where nobody owns it"


_FOUND = {
    "running": (Verdict.RUNS, State.RUNNING),
    "paused": (Verdict.STANDS, State.PAUSED),
    "asleep": (Verdict.SLEEPS, State.HIBERNATED),
}
_STATES = dict(_FOUND.values())
# A snapshot may have been made by these, and the answer that told of it lost.
_FREEZING = frozenset({State.SNAPSHOTTING, State.HIBERNATING})


def decide(sandbox: Sandbox | None, found: Incarnation | None) -> Verdict:
    """Return what is to be done about a sandbox as recorded (None: not, or deleted) and as found on the host."""
    if sandbox is None or sandbox.state is State.DELETED:
        return Verdict.NOTHING if found is None else Verdict.STRAY
    if sandbox.state is State.FAILED:
        return Verdict.NOTHING
    if sandbox.state is State.DELETING:
        return Verdict.CLOSE
    if found is None or not found.alive:
        # In a creation it may also mean not yet: closing it makes the end definite before it is recorded.
        return Verdict.CLOSE if sandbox.state is State.CREATING else Verdict.LOST
    verdict, state = _FOUND[found.status]
    if sandbox.state is State.CREATING:
        # Children come to be all or none. One that is not recorded yet has siblings of which that is not known.
        return verdict if verdict is Verdict.RUNS and sandbox.parent is None else Verdict.CLOSE
    return _in_force(sandbox, found) if sandbox.state is state else verdict


def _in_force(sandbox: Sandbox, found: Incarnation) -> Verdict:
    # A host that has no network has no policy either.
    return Verdict.TELL if found.network not in (None, order_of(sandbox.network)) else Verdict.NOTHING


async def reconcile(plane: Plane) -> int:
    """Mend every difference there is now, of sandboxes, snapshots and volumes, and return how many there were.

    Sandboxes with a passage under way are left to it. What cannot be mended is logged and left for the next time.
    Raises HostUnreachable if the host cannot be asked.
    """
    return await reconcile_sandboxes(plane) + await reconcile_snapshots(plane) + await reconcile_volumes(plane)


async def reconcile_sandboxes(plane: Plane) -> int:
    """Mend what differs between recorded sandboxes and what lives on the host. See `reconcile`."""
    recorded = {sandbox.id: sandbox for sandbox in await plane.store.living()}
    found = await plane.host.incarnations()
    differing = 0
    for sandbox_id in sorted({*recorded, *map(SandboxId, found)}):
        verdict = decide(recorded.get(sandbox_id), found.get(sandbox_id))
        if verdict is Verdict.NOTHING or plane.gate.is_busy(sandbox_id):
            continue
        differing += 1
        try:
            await reconcile_one(plane, sandbox_id)
        except TorporError as error:
            _log.warning("not mended", sandbox=sandbox_id, wanted=verdict.value, error=error.message)
    return differing


async def reconcile_one(plane: Plane, sandbox_id: SandboxId) -> None:
    """Mend one sandbox, after any passage of it that is under way. Raises what the host raises.

    Both sides are read here, with no passage under way, so that neither can be older than the other.
    """
    async with plane.gate.alone(sandbox_id):
        sandbox = await plane.store.get(sandbox_id)
        found = (await plane.host.incarnations()).get(sandbox_id)
        verdict = decide(sandbox, found)
        if verdict is Verdict.NOTHING:
            return
        recorded = sandbox.state.value if sandbox is not None else None
        alive = found is not None and found.alive
        _log.info("mending", sandbox=sandbox_id, recorded=recorded, alive=alive, verdict=verdict.value)
        if sandbox is not None and sandbox.state in _FREEZING:
            await _mend_snapshots(plane, sandbox_id)
        await _mend(plane, sandbox_id, sandbox, found)


async def _mend(plane: Plane, sandbox_id: SandboxId, sandbox: Sandbox | None, found: Incarnation | None) -> None:
    verdict = decide(sandbox, found)
    reading = reading_of(None if found is None else found.usage)
    if verdict in (Verdict.CLOSE, Verdict.STRAY):
        reading = reading_of(await plane.host.close(sandbox_id)) or reading
    if sandbox is None:
        return
    if verdict is Verdict.CLOSE:
        await _end_siblings(plane, sandbox)
        await plane.gate.correct(sandbox, State.DELETED, reading=reading)
    elif verdict is Verdict.LOST:
        # Before it is recorded, so that whoever reads that it failed finds that it is being mended.
        begin_recovery(plane, sandbox)
        await plane.gate.correct(sandbox, State.FAILED, reading=reading, reason=_reason(plane, sandbox, found))
    elif verdict is Verdict.TELL:
        await plane.host.set_network(sandbox_id, order_of(sandbox.network))
    elif verdict in _STATES and found is not None:
        since = await _asleep_since(plane, sandbox_id) if verdict is Verdict.SLEEPS else None
        facts = await _facts(plane, sandbox, found)
        await plane.gate.correct(sandbox, _STATES[verdict], since=since, reading=reading, **facts)


async def _end_siblings(plane: Plane, sandbox: Sandbox) -> None:
    """Delete the children that are recorded of a fork whose first, which is recorded last, did not come to be."""
    if sandbox.state is not State.CREATING or sandbox.parent is None:
        return
    for number in itertools.count(1):
        sibling = await plane.store.get(sibling_id(sandbox.id, number))
        if sibling is None:
            return
        if sibling.state in DELETE.starts:
            async with plane.gate.passage(sibling.id, DELETE) as crossing:
                if not crossing.holds:
                    crossing.reading = reading_of(await plane.host.close(sibling.id))


async def _asleep_since(plane: Plane, sandbox_id: SandboxId) -> datetime | None:
    """Return when the snapshot was made that a sandbox sleeps in, None if that is not known."""
    records = await plane.store.snapshots_of(sandbox_id)
    return next((record.created_at for record in records if record.kind is Kind.HIBERNATION), None)


def _reason(plane: Plane, sandbox: Sandbox, found: Incarnation | None) -> str:
    reason = found.reason if found is not None else "its machine is not on the host any more"
    reason = reason or "its machine died"
    if wishes_recovery(sandbox) and not plane.recoveries.may_begin(sandbox.id):
        minutes = round(WITHIN_S / 60)
        reason = f"{reason}; it was put back {AT_MOST} times within {minutes} minutes, and is left as it is now"
    return reason


async def _facts(plane: Plane, sandbox: Sandbox, found: Incarnation) -> Facts:
    """Return what the host tells of a machine that is recorded only now."""
    facts = facts_of(found)
    if sandbox.state is State.RESTORING and found.base is not None:
        record = await plane.store.snapshot(SnapshotId(found.base))
        if record is not None:
            facts["secret_names"] = names_after(sandbox, record)
    if sandbox.state is State.CREATING and sandbox.from_snapshot is None and found.base is not None:
        facts["from_snapshot"] = SnapshotId(found.base)
    return facts


async def reconcile_snapshots(plane: Plane) -> int:
    """Mend what differs between recorded snapshots and those on the host, and tidy what a crash left. See `reconcile`.

    A snapshot of a sandbox that nobody knows is left where it is, and spoken of once.
    """
    # Snapshots first: whose sandbox is not among the living after that is deleted, and not about to be made.
    recorded = await plane.store.every_snapshot()
    living = {sandbox.id: sandbox for sandbox in await plane.store.living()}
    there = await plane.host.snapshots()
    found = {frozen.id: SandboxId(frozen.sandbox) for frozen in there.items}
    plane.shelf.forget_other_strays(found)
    owners = {record.id: record.sandbox for record in recorded}
    # One that cannot be read keeps its record, by which it can be named, and deleted.
    found |= {one: owners[SnapshotId(one)] for one in there.unreadable if one in owners}
    differing = {(found | owners)[one] for one in owners.keys() ^ found.keys()}
    of_each = {owner: [record for record in recorded if record.sandbox == owner] for owner in set(owners.values())}
    untidy = {owner for owner, kept in of_each.items() if superfluous(kept, living.get(owner))}
    mended = 0
    for owner in sorted(differing | untidy):
        if not plane.gate.is_busy(owner):
            mended += await _mend_shelf(plane, owner)
    return mended


async def _mend_shelf(plane: Plane, owner: SandboxId) -> int:
    """Mend and tidy the snapshots of one sandbox, and return how many records were changed."""
    try:
        before = await plane.store.snapshots_of(owner)
        async with plane.gate.alone(owner):
            await _mend_snapshots(plane, owner)
        await tidy(plane, owner)
        return len(set(before) ^ set(await plane.store.snapshots_of(owner)))
    except TorporError as error:
        _log.warning("snapshots not mended", sandbox=owner, error=error.message)
        return 0


async def _mend_snapshots(plane: Plane, owner: SandboxId) -> None:
    """Record what is on the host and drop what is not, of one sandbox; inside `alone`, so that no side is older."""
    sandbox = await plane.store.get(owner)
    recorded = {record.id: record for record in await plane.store.snapshots_of(owner)}
    there = await plane.host.snapshots()
    found = {SnapshotId(frozen.id): frozen for frozen in there.items if frozen.sandbox == owner}
    for gone in recorded.keys() - found.keys() - set(there.unreadable):
        _log.warning("snapshot is not on the host any more", snapshot=gone, sandbox=owner)
        await plane.store.remove_snapshot(gone)
    for new in found.keys() - recorded.keys():
        if sandbox is not None:
            await keep(plane, sandbox, found[new])
        elif plane.shelf.is_news(new):
            _log.warning("snapshot of a sandbox that is not known", snapshot=new, sandbox=owner)


async def watch(plane: Plane, every_s: float) -> None:
    """Reconcile for ever, and at once when the `truth` bell rings. Ends by cancellation.

    Sandboxes are looked at every `every_s` seconds. Snapshots, which nobody but this server changes and which may be
    many, only every _SHELF_ROUNDS times that.
    """
    for number in itertools.count(1):
        await rung_or_slept(plane.bells.truth, plane.clock.sleep(every_s))
        try:
            await reconcile_sandboxes(plane)
            await begin_recoveries(plane)
            if number % _SHELF_ROUNDS == 0:
                await reconcile_snapshots(plane)
                await reconcile_volumes(plane)
        except TorporError as error:
            _log.warning("could not reconcile", error=error.message)
