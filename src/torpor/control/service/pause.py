"""Pause: let a running sandbox stand still, its memory kept."""

from __future__ import annotations

from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, in_use, noticing_loss, standing
from torpor.model.lifecycle import PAUSE


async def pause(plane: Plane, owned: Owned) -> None:
    """Pause a sandbox; fine if it is paused. Raises NotFound, SandboxLost, Conflict, and what the host raises."""
    async with in_use(plane, owned):
        await standing(plane, owned)
        async with noticing_loss(plane, owned), plane.gate.passage(owned.id, PAUSE) as crossing:
            if not crossing.holds:
                await plane.host.pause(owned.id)
