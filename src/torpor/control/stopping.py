"""The end of the control plane: what runs is put to sleep, so that nothing of it is lost while no server is there."""

from __future__ import annotations

import asyncio

import structlog

from torpor.control.service.delete import delete
from torpor.control.service.hibernate import hibernate
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, settled
from torpor.errors import NotFound, TorporError
from torpor.kit.race import Overtaken, race
from torpor.kit.together import together
from torpor.model.lifecycle import STANDING, State
from torpor.model.sandbox import Sandbox

_log = structlog.get_logger("torpor.control")

_AT_ONCE = 4
# What has no machine that could be lost.
_AT_REST = frozenset({State.HIBERNATED, State.FAILED})


async def put_to_sleep(plane: Plane, within_s: float) -> None:
    """Hibernate every running or paused sandbox that has life left, and delete those that have none, within a time.

    Never fails: what could not be put to sleep is named in the log, and runs on.
    """
    try:
        awake = {one.id: one for one in await plane.store.living() if one.state not in _AT_REST}
    except TorporError as error:
        _log.warning("could not look for what runs; it runs on, and the next start takes it over", error=error.message)
        return
    if not awake:
        return
    _log.info("putting sandboxes to sleep", count=len(awake), within_s=within_s)
    limit, left = asyncio.Semaphore(_AT_ONCE), dict(awake)

    async def one(sandbox: Sandbox) -> None:
        async with limit:
            if await _rests(plane, sandbox):
                del left[sandbox.id]
                _log.info("asleep", sandbox=sandbox.id, left=len(left))

    try:
        await race(together(*map(one, awake.values())), plane.clock.sleep(within_s))
    except Overtaken:
        _log.warning("no time left to put sandboxes to sleep", count=len(left))
    for sandbox_id in left:
        _log.warning("runs on; the next start takes it over", sandbox=sandbox_id)


async def _rests(plane: Plane, sandbox: Sandbox) -> bool:
    """Bring one sandbox to rest, and tell whether it is."""
    owned = Owned(sandbox.workspace, sandbox.id)
    try:
        found = await settled(plane, owned)
        if found.expires_at is not None and found.expires_at <= plane.clock.now():
            await delete(plane, owned)
        elif found.state in STANDING:
            await hibernate(plane, owned)
    except NotFound:
        return True
    except TorporError as error:
        _log.warning("could not put a sandbox to sleep", sandbox=sandbox.id, error=error.message)
        return False
    return True
