"""Puts sandboxes to sleep that nobody has used for their idle time, or deletes them, as they wish."""

from __future__ import annotations

from functools import partial

import structlog

from torpor.control.rounds import rounds
from torpor.control.service.chores import Chore
from torpor.control.service.delete import delete
from torpor.control.service.hibernate import hibernate
from torpor.control.service.kernel import is_at_rest
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, noticing_loss
from torpor.errors import Conflict, HostUnreachable, NotFound, TorporError
from torpor.kit.race import Overtaken, race
from torpor.model.lifecycle import STANDING, State
from torpor.model.sandbox import OnIdle, Sandbox
from torpor.wire import host

_log = structlog.get_logger("torpor.control")

# A host that does not say within this, in seconds, whether a command runs has not said it: it is asked again later.
_PATIENCE_S = 10.0
# Records that could not be read are looked at again after this, in seconds.
_RETRY_S = 5.0
_LONGEST_NAP_S = 3600.0


async def sweep(plane: Plane) -> None:
    """Sweep idle sandboxes away, for ever. Ends by cancellation.

    Sleeps until the nearest one may be idle, and looks again when the `idleness` bell rings.
    """
    bell, clock = plane.bells.idleness, plane.clock
    await rounds("idle sandboxes", bell, partial(_look, plane), clock.sleep, lambda: _RETRY_S)


async def _look(plane: Plane) -> float:
    """Begin to sweep what is idle, and return after how many seconds to look again."""
    living = await plane.store.living()
    plane.activity.forget_others({sandbox.id for sandbox in living})
    nap_s = _LONGEST_NAP_S
    for sandbox in living:
        left_s = None if plane.chores.is_under_way(Chore.SWEEP, sandbox.id) else _left_s(plane, sandbox)
        if left_s is None:
            continue
        if left_s <= 0:
            plane.chores.begin(Chore.SWEEP, sandbox.id, partial(_sweep, plane, sandbox))
        else:
            nap_s = min(nap_s, left_s)
    return nap_s


def _left_s(plane: Plane, sandbox: Sandbox) -> float | None:
    """Return in how many seconds a sandbox will be idle at the earliest, None if not by itself.

    Of one in use too: it cannot be idle sooner than after that.
    """
    after_s = sandbox.care.idle_timeout_seconds
    if after_s is None or sandbox.state not in STANDING:
        return None
    return after_s - plane.activity.idle_s(sandbox.id)


def _is_idle(plane: Plane, sandbox: Sandbox) -> bool:
    left_s = _left_s(plane, sandbox)
    return left_s is not None and left_s <= 0


async def _sweep(plane: Plane, sandbox: Sandbox) -> None:
    try:
        await plane.activity.wait_swept(sandbox.id)
        if await _works(plane, sandbox):
            plane.activity.touch(sandbox.id)
            return
        with plane.activity.sweeping(sandbox.id) as is_unused:
            # Its turn, and the answer, may have taken a while: what counts is what its owner wishes for by now.
            now = await plane.store.get(sandbox.id) if is_unused else None
            if now is not None and _is_idle(plane, now):
                await _swept(plane, now)
    except NotFound:  # deleted meanwhile
        return
    except Conflict:  # so was its state, or its owner's wish, changed
        plane.activity.touch(sandbox.id)
    except TorporError as error:
        action = sandbox.care.on_idle.value
        _log.warning("could not sweep an idle sandbox", sandbox=sandbox.id, action=action, error=error.message)
        plane.noter.note("idle", sandbox, action=action, error=error.message)
        plane.activity.touch(sandbox.id)
    finally:
        plane.bells.idleness.set()


async def _swept(plane: Plane, sandbox: Sandbox) -> None:
    owned, is_idle = Owned(sandbox.workspace, sandbox.id), partial(_is_idle, plane)
    if sandbox.care.on_idle is OnIdle.DELETE:
        await delete(plane, owned, is_idle)
    else:
        await hibernate(plane, owned, is_idle)
    plane.noter.note("idle", sandbox, action=sandbox.care.on_idle.value)
    _log.info("idle", sandbox=sandbox.id, action=sandbox.care.on_idle.value)


async def _works(plane: Plane, sandbox: Sandbox) -> bool:
    """Tell whether a command runs in a sandbox, which nobody may be listening to. Raises HostUnreachable.

    The interpreter of a code context only counts while it runs a cell, and a terminal that nobody looks at not at all:
    a shell waits on it for as long as it is there.

    One that is paused cannot be asked. Nothing is lost if it is put to sleep; but it is not deleted unheard.
    """
    if sandbox.state is not State.RUNNING:
        return sandbox.care.on_idle is OnIdle.DELETE
    try:
        jobs = await race(_jobs(plane, sandbox), plane.clock.sleep(_PATIENCE_S))
    except Overtaken:
        raise HostUnreachable(f"the host did not say within {_PATIENCE_S:.0f} s which commands run") from None
    return any(job.outcome is None and job.terminal is None and not is_at_rest(job) for job in jobs)


async def _jobs(plane: Plane, sandbox: Sandbox) -> list[host.Job]:
    async with noticing_loss(plane, Owned(sandbox.workspace, sandbox.id)):
        return await plane.host.jobs(sandbox.id)
