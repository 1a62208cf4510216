"""Ends sandboxes whose time is over, and forgets those that were deleted long ago."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import structlog

from torpor.control.reconcile import rung_or_slept
from torpor.control.service.delete import delete
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned
from torpor.errors import TorporError
from torpor.model.sandbox import Sandbox

_log = structlog.get_logger("torpor.control")

_AT_ONCE = 8
# A deletion that failed is tried again after this.
_RETRY_S = 5.0
# Nothing is due for this long at most: then what was deleted long ago is looked for.
_LONGEST_SLEEP_S = 3600.0
# How long a deleted sandbox, and its idempotency key, are remembered.
REMEMBERED = timedelta(days=7)


async def reap(plane: Plane) -> None:
    """Delete sandboxes at the end of their lives, for ever; what ended before the start is deleted at once.

    Sleeps until the nearest end, and looks again when the `expiry` bell rings. Ends by cancellation.
    """
    while True:
        plane.bells.expiry.clear()
        try:
            wait_s = await _round(plane)
        except TorporError as error:
            _log.warning("could not look for ended sandboxes", error=error.message)
            wait_s = _RETRY_S
        await rung_or_slept(plane.bells.expiry, plane.clock, wait_s)


async def _round(plane: Plane) -> float:
    """Delete what is due now, and return after how many seconds to look again."""
    await plane.store.forget(plane.clock.now() - REMEMBERED)
    while due := await plane.store.due(plane.clock.now(), _AT_ONCE):
        ended = await asyncio.gather(*(_end(plane, sandbox) for sandbox in due))
        if not any(ended):
            return _RETRY_S
    nearest = await plane.store.next_expiry()
    if nearest is None:
        return _LONGEST_SLEEP_S
    return min(max((nearest - plane.clock.now()).total_seconds(), 0.0), _LONGEST_SLEEP_S)


async def _end(plane: Plane, sandbox: Sandbox) -> bool:
    """Delete one sandbox and tell whether that worked."""
    try:
        await delete(plane, Owned(sandbox.workspace, sandbox.id))
    except TorporError as error:
        _log.warning("could not end a sandbox", sandbox=sandbox.id, error=error.message)
        return False
    _log.info("ended", sandbox=sandbox.id, expired_at=str(sandbox.expires_at))
    return True
