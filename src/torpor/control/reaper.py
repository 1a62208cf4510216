"""Ends sandboxes whose time is over."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

import structlog

from torpor.control.rounds import rounds
from torpor.control.service.chores import AT_ONCE, Chore
from torpor.control.service.delete import delete
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned
from torpor.errors import NotFound, TorporError
from torpor.kit.race import Overtaken, race
from torpor.model.ids import SandboxId
from torpor.model.sandbox import Sandbox

_log = structlog.get_logger("torpor.control")

# A deletion that failed is tried again after this, and so is one that has not ended by then: it is given up for now.
_RETRY = timedelta(seconds=5)
_PATIENCE_S = 60.0
# Nothing is due for this long at most.
_LONGEST_SLEEP = timedelta(hours=1)


async def reap(plane: Plane) -> None:
    """Delete sandboxes at the end of their lives, for ever; what ended before the start is deleted at once.

    Sleeps until the nearest end, and looks again when the `expiry` bell rings. One whose deletion fails, or hangs,
    keeps no other from its end. Ends by cancellation.
    """
    bell, clock = plane.bells.expiry, plane.clock
    spared: dict[SandboxId, datetime] = {}
    # By the wall clock, which is what a ttl is counted on: it also runs while this machine is suspended.
    look, later = partial(_round, plane, spared), lambda: clock.now() + _RETRY
    await rounds("ended sandboxes", bell, look, clock.sleep_until, later)


async def _round(plane: Plane, spared: dict[SandboxId, datetime]) -> datetime:
    """Begin to delete what is due now, and return when to look again. `spared`: what failed, and until when it is."""
    now = plane.clock.now()
    for one in [one for one, until in spared.items() if until <= now]:
        del spared[one]
    under_way = plane.chores.count(Chore.END)
    # Enough for as many as can have their turn beside those that are left alone; each rings the bell at its end.
    for sandbox in await plane.store.due(now, len(spared) + under_way + AT_ONCE[Chore.END]):
        if sandbox.id not in spared:
            plane.chores.begin(Chore.END, sandbox.id, partial(_end, plane, sandbox, spared))
    return min([now + _LONGEST_SLEEP, await plane.store.next_expiry(now) or now + _LONGEST_SLEEP, *spared.values()])


async def _end(plane: Plane, sandbox: Sandbox, spared: dict[SandboxId, datetime]) -> None:
    try:
        await race(delete(plane, Owned(sandbox.workspace, sandbox.id)), plane.clock.sleep(_PATIENCE_S))
        plane.noter.note("expired", sandbox)
        _log.info("ended", sandbox=sandbox.id, expired_at=str(sandbox.expires_at))
    except NotFound:  # somebody else deleted it, and it is forgotten
        return
    except (TorporError, Overtaken) as error:
        spared[sandbox.id] = plane.clock.now() + _RETRY
        reason = error.message if isinstance(error, TorporError) else f"no end within {_PATIENCE_S:.0f} s"
        _log.warning("could not end a sandbox", sandbox=sandbox.id, error=reason)
    finally:
        plane.bells.expiry.set()
