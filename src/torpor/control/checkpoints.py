"""Takes checkpoints of running sandboxes by themselves, every so many seconds of running or commands, as they wish."""

from __future__ import annotations

from functools import partial

import structlog

from torpor.control.rounds import rounds
from torpor.control.service.chores import Chore
from torpor.control.service.freeze import freeze
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned
from torpor.control.service.snapshots import tidy
from torpor.errors import Conflict, NotFound, TorporError
from torpor.model.ids import new_snapshot_id
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox
from torpor.model.snapshot import Kind
from torpor.wire import host

_log = structlog.get_logger("torpor.control")

NAME = "automatic"
# Records that could not be read are looked at again after this, in seconds; so is what was busy when it was due.
_RETRY_S = 1.0
_LONGEST_NAP_S = 3600.0


async def take_checkpoints(plane: Plane) -> None:
    """Take every checkpoint when it is due, for ever. Ends by cancellation.

    Sleeps until the nearest one is due, and looks again when the `pace` bell rings.
    """
    await rounds("due checkpoints", plane.bells.pace, partial(_look, plane), plane.clock.sleep, lambda: _RETRY_S)


async def _look(plane: Plane) -> float:
    """Begin what is due, and return after how many seconds to look again."""
    living = await plane.store.living()
    plane.pace.forget_others({sandbox.id for sandbox in living})
    nap_s = _LONGEST_NAP_S
    for sandbox in living:
        care = sandbox.care
        if care.checkpoint_every_seconds is None and care.checkpoint_every_execs is None:
            continue
        plane.pace.look(sandbox, 0.0 if plane.pace.is_known(sandbox.id) else await _ran_s(plane, sandbox))
        left_s = plane.pace.left_s(sandbox)
        if sandbox.state is State.RUNNING and left_s is not None:
            nap_s = min(nap_s, left_s or _begun(plane, sandbox))
    return nap_s


def _begun(plane: Plane, sandbox: Sandbox) -> float:
    """Begin a checkpoint that is due, and return after how many seconds it has to be looked at again.

    While a passage is under way none is begun: it may be a checkpoint itself.
    """
    is_under_way = plane.chores.is_under_way(Chore.CHECKPOINT, sandbox.id)
    if plane.gate.is_busy(sandbox.id) or is_under_way:
        return _RETRY_S
    plane.pace.begin_anew(sandbox)
    plane.chores.begin(Chore.CHECKPOINT, sandbox.id, partial(_checkpoint, plane, sandbox))
    return plane.pace.left_s(sandbox) or _LONGEST_NAP_S


async def _ran_s(plane: Plane, sandbox: Sandbox) -> float:
    """Return how long a sandbox has gone without a checkpoint that this server knows nothing else of, at most."""
    records = await plane.store.snapshots_of(sandbox.id)
    taken = [record.created_at for record in records if record.kind is not Kind.FORK]
    last = max([sandbox.created_at, *taken])
    return max(0.0, (plane.clock.now() - last).total_seconds())


async def _checkpoint(plane: Plane, sandbox: Sandbox) -> None:
    owned = Owned(sandbox.workspace, sandbox.id)
    order = host.Freeze(id=new_snapshot_id(), kind=Kind.AUTOMATIC.value, name=NAME)
    try:
        await freeze(plane, owned, order)
    except (NotFound, Conflict):  # it was deleted, or fell asleep, meanwhile: there is nothing to lose
        return
    except TorporError as error:
        _log.warning("checkpoint failed", sandbox=sandbox.id, error=error.message)
        plane.noter.note("checkpoint_failed", sandbox, error=error.message)
        return
    await tidy(plane, sandbox.id)
