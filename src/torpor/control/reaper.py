"""Ends sandboxes whose time is over."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

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
_RETRY = timedelta(seconds=5)
# Nothing is due for this long at most.
_LONGEST_SLEEP = timedelta(hours=1)


async def reap(plane: Plane) -> None:
    """Delete sandboxes at the end of their lives, for ever; what ended before the start is deleted at once.

    Sleeps until the nearest end, and looks again when the `expiry` bell rings. Ends by cancellation.
    """
    while True:
        plane.bells.expiry.clear()
        try:
            next_look = await _round(plane)
        except TorporError as error:
            _log.warning("could not look for ended sandboxes", error=error.message)
            next_look = plane.clock.now() + _RETRY
        # By the wall clock, which is what a ttl is counted on: it also runs while this machine is suspended.
        await rung_or_slept(plane.bells.expiry, plane.clock.sleep_until(next_look))


async def _round(plane: Plane) -> datetime:
    """Delete what is due now, and return when to look again."""
    while due := await plane.store.due(plane.clock.now(), _AT_ONCE):
        ended = await asyncio.gather(*(_end(plane, sandbox) for sandbox in due))
        if not any(ended):
            return plane.clock.now() + _RETRY
    latest = plane.clock.now() + _LONGEST_SLEEP
    return min(await plane.store.next_expiry() or latest, latest)


async def _end(plane: Plane, sandbox: Sandbox) -> bool:
    """Delete one sandbox and tell whether that worked."""
    try:
        await delete(plane, Owned(sandbox.workspace, sandbox.id))
    except TorporError as error:
        _log.warning("could not end a sandbox", sandbox=sandbox.id, error=error.message)
        return False
    plane.noter.note("expired", sandbox)
    _log.info("ended", sandbox=sandbox.id, expired_at=str(sandbox.expires_at))
    return True
