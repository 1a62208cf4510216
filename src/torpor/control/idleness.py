"""Puts sandboxes to sleep that nobody has used for their idle time, or deletes them, as they wish."""

from __future__ import annotations

from functools import partial

import structlog

from torpor.control.reconcile import rung_or_slept
from torpor.control.service.chores import Chore
from torpor.control.service.delete import delete
from torpor.control.service.hibernate import hibernate
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, noticing_loss
from torpor.errors import NotFound, TorporError
from torpor.model.lifecycle import State
from torpor.model.sandbox import OnIdle, Sandbox

_log = structlog.get_logger("torpor.control")

# What does nothing for anybody, and costs as if it did.
_MAY_BE_IDLE = frozenset({State.RUNNING, State.PAUSED})
# Records that could not be read are looked at again after this, in seconds.
_RETRY_S = 5.0
_LONGEST_NAP_S = 3600.0


async def sweep(plane: Plane) -> None:
    """Sweep idle sandboxes away, for ever. Ends by cancellation.

    Sleeps until the nearest one may be idle, and looks again when the `idleness` bell rings.
    """
    while True:
        plane.bells.idleness.clear()
        try:
            nap_s = await _look(plane)
        except TorporError as error:
            _log.warning("could not look for idle sandboxes", error=error.message)
            nap_s = _RETRY_S
        await rung_or_slept(plane.bells.idleness, plane.clock.sleep(nap_s))


async def _look(plane: Plane) -> float:
    """Begin to sweep what is idle, and return after how many seconds to look again."""
    living = await plane.store.living()
    plane.activity.forget_others({sandbox.id for sandbox in living})
    nap_s = _LONGEST_NAP_S
    for sandbox in living:
        after_s = sandbox.care.idle_timeout_seconds
        if after_s is None or sandbox.state not in _MAY_BE_IDLE or plane.chores.is_under_way(Chore.SWEEP, sandbox.id):
            continue
        # Of one in use too: it cannot be idle sooner than after that.
        left_s = after_s - plane.activity.idle_s(sandbox.id)
        if left_s <= 0:
            plane.chores.begin(Chore.SWEEP, sandbox.id, partial(_sweep, plane, sandbox, after_s))
        else:
            nap_s = min(nap_s, left_s)
    return nap_s


async def _sweep(plane: Plane, sandbox: Sandbox, after_s: float) -> None:
    try:
        if await _works(plane, sandbox):
            plane.activity.touch(sandbox.id)
            return
        with plane.activity.sweeping(sandbox.id, after_s) as is_idle:
            if is_idle:
                await _swept(plane, sandbox)
    except NotFound:  # deleted meanwhile
        return
    except TorporError as error:
        action = sandbox.care.on_idle.value
        _log.warning("could not sweep an idle sandbox", sandbox=sandbox.id, action=action, error=error.message)
        plane.noter.note("idle", sandbox, action=action, error=error.message)
        plane.activity.touch(sandbox.id)
    finally:
        plane.bells.idleness.set()


async def _swept(plane: Plane, sandbox: Sandbox) -> None:
    owned = Owned(sandbox.workspace, sandbox.id)
    if sandbox.care.on_idle is OnIdle.DELETE:
        await delete(plane, owned)
    else:
        await hibernate(plane, owned)
    plane.noter.note("idle", sandbox, action=sandbox.care.on_idle.value)
    _log.info("idle", sandbox=sandbox.id, action=sandbox.care.on_idle.value)


async def _works(plane: Plane, sandbox: Sandbox) -> bool:
    """Tell whether a command runs in a sandbox, which nobody may be listening to."""
    if sandbox.state is not State.RUNNING:
        return False
    async with noticing_loss(plane, Owned(sandbox.workspace, sandbox.id)):
        jobs = await plane.host.jobs(sandbox.id)
    return any(job.outcome is None for job in jobs)
