"""Forgets what has been over for long enough."""

from __future__ import annotations

import structlog

from torpor.control.service.plane import Plane
from torpor.control.store.rules import horizons_at
from torpor.errors import TorporError

_log = structlog.get_logger("torpor.control")

_EVERY_S = 3600.0


async def forget(plane: Plane) -> None:
    """Drop what lies beyond the horizons, now and every hour. Ends by cancellation."""
    while True:
        try:
            if dropped := await plane.store.forget(horizons_at(plane.clock.now())):
                _log.info("forgotten", sandboxes=dropped)
        except TorporError as error:
            _log.warning("could not forget", error=error.message)
        await plane.clock.sleep(_EVERY_S)
