"""Recovery: a sandbox whose machine died goes back to its last snapshot by itself, if it was made to."""

from __future__ import annotations

from functools import partial

import structlog

from torpor.control.service.chores import Chore
from torpor.control.service.plane import Plane
from torpor.control.service.snapshots import show_snapshot
from torpor.control.store.contract import SnapshotRecord
from torpor.errors import TorporError, Unavailable
from torpor.model.ids import SandboxId, SnapshotId
from torpor.model.lifecycle import DELETE, ROLLBACK, State
from torpor.model.sandbox import OnCrash, Sandbox
from torpor.wire import host

_log = structlog.get_logger("torpor.control")

# A host that has no room now is asked again after this, within what is allowed.
_RETRY_S = 5.0


async def put_back(plane: Plane, sandbox_id: SandboxId, record: SnapshotRecord) -> Sandbox:
    """Put a sandbox back to a snapshot, as one passage. If it definitely fails, it is as before."""
    with plane.shelf.using(record.id):
        async with plane.gate.passage(sandbox_id, ROLLBACK) as crossing:
            born = await plane.host.rollback(sandbox_id, host.Rollback(snapshot=record.id))
            crossing.learn(boot_ms=born.boot_ms, cpu=born.cpu, memory_mb=born.memory_mb, disk_gb=born.disk_gb)
    # Of a sandbox that was lost, the host had nothing left that could have told it.
    await plane.deadlines.tell(sandbox_id)
    return crossing.sandbox


def begin_recovery(plane: Plane, sandbox: Sandbox) -> None:
    """Have a sandbox put back to its last snapshot if it wishes for that and it may be; it must be lost, or about to be
    recorded as lost by the caller, who holds its turn. Calls that come from now on wait for it.
    """
    if wishes_recovery(sandbox) and plane.recoveries.may_begin(sandbox.id):
        plane.chores.begin(Chore.RECOVERY, sandbox.id, partial(_recover, plane, sandbox.id))


async def begin_recoveries(plane: Plane) -> None:
    """Begin the recoveries that a former server left undone: of what is lost, but not by a deletion that failed."""
    for sandbox in await plane.store.living():
        by_deletion = (sandbox.reason or "").startswith(f"{DELETE.verb}: ")
        if sandbox.state is State.FAILED and not by_deletion:
            begin_recovery(plane, sandbox)


def wishes_recovery(sandbox: Sandbox) -> bool:
    """Tell whether a sandbox is to be put back to its last snapshot once it is lost, and has one."""
    return sandbox.care.on_crash is OnCrash.RESTORE and sandbox.last_snapshot is not None


async def _recover(plane: Plane, sandbox_id: SandboxId) -> None:
    while True:
        async with plane.gate.alone(sandbox_id):  # until the loss is recorded
            sandbox = await plane.store.get(sandbox_id)
        if sandbox is None or sandbox.state is not State.FAILED or sandbox.last_snapshot is None:
            return
        try:
            back = await _tried(plane, sandbox, sandbox.last_snapshot)
        except Unavailable as error:
            if not plane.recoveries.may_begin(sandbox_id):
                raise
            _log.warning("not put back yet", sandbox=sandbox_id, error=error.message)
            await plane.clock.sleep(_RETRY_S)
        else:
            plane.activity.touch(sandbox_id)
            plane.noter.note("recovered", back, snapshot_id=sandbox.last_snapshot)
            _log.info("recovered", sandbox=sandbox_id, snapshot=sandbox.last_snapshot)
            return


async def _tried(plane: Plane, sandbox: Sandbox, snapshot_id: SnapshotId) -> Sandbox:
    plane.recoveries.count(sandbox.id)
    try:
        record = await show_snapshot(plane, sandbox.workspace, snapshot_id)
        return await put_back(plane, sandbox.id, record)
    except TorporError as error:
        reason = f"it could not be put back to its last snapshot: {error.message}"
        plane.noter.note("failed", sandbox, reason=reason, last_snapshot=snapshot_id)
        raise
