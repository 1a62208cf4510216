"""Recovery: a sandbox whose machine died goes back to its last snapshot by itself, if it was made to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import structlog

from torpor.control.service.chores import Chore
from torpor.control.service.passage import facts_of
from torpor.control.service.plane import Plane
from torpor.control.service.reach import order_of
from torpor.control.service.secrets import names_after, on_rollback
from torpor.control.service.snapshots import show_snapshot
from torpor.control.store.contract import SnapshotRecord
from torpor.errors import Conflict, NotFound, TorporError, Unavailable
from torpor.model.ids import SandboxId, SnapshotId
from torpor.model.lifecycle import DELETE, ROLLBACK, Passage, State
from torpor.model.sandbox import OnCrash, Sandbox
from torpor.wire import host

_log = structlog.get_logger("torpor.control")

# Nobody's work may be undone by it: what runs again has been put back by its owner.
RECOVERY = replace(ROLLBACK, starts=frozenset({State.FAILED}))
# A host that has no room now is asked again after the first of these, in seconds, and after twice as long each time.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 5.0, 60.0


async def put_back(
    plane: Plane,
    sandbox_id: SandboxId,
    record: SnapshotRecord,
    row: Passage = ROLLBACK,
    is_wanted: Callable[[Sandbox], bool] | None = None,
) -> Sandbox:
    """Put a sandbox back to a snapshot, as one passage. If it definitely fails, it is as before."""
    with plane.shelf.using(record.id):
        async with plane.gate.passage(sandbox_id, row, is_wanted) as crossing:
            sandbox = crossing.sandbox
            order = host.Rollback(
                snapshot=record.id,
                secrets=on_rollback(sandbox, record),
                network=order_of(sandbox.network),
                volumes=[each.volume for each in sandbox.volumes if not each.is_copy],
            )
            born = await plane.host.rollback(sandbox_id, order)
            crossing.learn(**facts_of(born))
            crossing.learn(secret_names=names_after(sandbox, record))
    if gone := sorted(set(sandbox.secret_names) - set(crossing.sandbox.secret_names)):
        plane.noter.note("secrets", crossing.sandbox, removed=gone, snapshot_id=record.id)
    # Of a sandbox that was lost, the host had nothing left that could have told it.
    await plane.deadlines.tell(sandbox_id)
    return crossing.sandbox


def begin_recovery(plane: Plane, sandbox: Sandbox) -> None:
    """Have a sandbox put back to its last snapshot if it wishes for that and it may be; it must be lost, or about to be
    recorded as lost by the caller, who holds its turn. Calls that come from now on wait for it.
    """
    if wishes_recovery(sandbox) and _has_life(plane, sandbox) and plane.recoveries.may_begin(sandbox.id):
        plane.chores.begin(Chore.RECOVERY, sandbox.id, partial(_recover, plane, _Loss(sandbox.id)))


async def begin_recoveries(plane: Plane) -> None:
    """Begin, once, the recoveries that an earlier server left undone: of what was lost, but not by a deletion."""
    if plane.recoveries.has_caught_up:
        return
    for sandbox in await plane.store.living():
        by_deletion = (sandbox.reason or "").startswith(f"{DELETE.verb}: ")
        if sandbox.state is State.FAILED and not by_deletion:
            begin_recovery(plane, sandbox)
    plane.recoveries.has_caught_up = True


def wishes_recovery(sandbox: Sandbox) -> bool:
    """Tell whether a sandbox is to be put back to its last snapshot once it is lost, and has one."""
    return sandbox.care.on_crash is OnCrash.RESTORE and sandbox.last_snapshot is not None


def _has_life(plane: Plane, sandbox: Sandbox) -> bool:
    return sandbox.expires_at is None or sandbox.expires_at > plane.clock.now()


@dataclass(slots=True)
class _Loss:
    """One loss of a sandbox: whether it was told that putting it back failed; how long to wait after the next try."""

    sandbox: SandboxId
    is_told: bool = False
    wait_s: float = _FIRST_WAIT_S


async def _recover(plane: Plane, loss: _Loss) -> None:
    """Put a sandbox back while it is lost, may be put back and has life left; where there is no room now, try later."""
    while True:
        async with plane.gate.alone(loss.sandbox):  # until the loss is recorded
            sandbox = await plane.store.get(loss.sandbox)
        if sandbox is None or sandbox.state is not State.FAILED or sandbox.last_snapshot is None:
            return
        if not _has_life(plane, sandbox) or not plane.recoveries.may_begin(sandbox.id):
            return
        try:
            back = await _tried(plane, loss, sandbox, sandbox.last_snapshot)
        except Unavailable as error:
            _log.warning("not put back yet", sandbox=sandbox.id, again_in_s=loss.wait_s, error=error.message)
            # Not here: calls wait for what is here, and others for its turn.
            plane.chores.begin(Chore.PATIENCE, sandbox.id, partial(_try_again, plane, loss))
            return
        except (Conflict, NotFound):  # it, or the snapshot, is not what it was: look again
            continue
        plane.noter.note("recovered", back, snapshot_id=sandbox.last_snapshot)
        _log.info("recovered", sandbox=sandbox.id, snapshot=sandbox.last_snapshot)
        plane.activity.touch(sandbox.id)
        loss = _Loss(sandbox.id)  # it may have died again since, while this was under way


async def _try_again(plane: Plane, loss: _Loss) -> None:
    await plane.clock.sleep(loss.wait_s)
    loss.wait_s = min(2 * loss.wait_s, _LONGEST_WAIT_S)
    plane.chores.begin(Chore.RECOVERY, loss.sandbox, partial(_recover, plane, loss))


async def _tried(plane: Plane, loss: _Loss, sandbox: Sandbox, snapshot_id: SnapshotId) -> Sandbox:
    plane.recoveries.count(sandbox.id)
    try:
        record = await show_snapshot(plane, sandbox.workspace, snapshot_id)
        return await put_back(plane, sandbox.id, record, RECOVERY, partial(_has_life, plane))
    except TorporError as error:
        found = await plane.store.get(sandbox.id)
        is_lost = found is not None and found.state is State.FAILED
        if isinstance(error, Unavailable) or not is_lost:  # nothing was tried, or somebody else has put it back
            plane.recoveries.take_back(sandbox.id)
        if is_lost and not loss.is_told:
            loss.is_told = True
            reason = f"it could not be put back to its last snapshot: {error.message}"
            plane.noter.note("failed", sandbox, reason=reason, last_snapshot=snapshot_id)
        raise
