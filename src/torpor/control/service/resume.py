"""Resume: let a paused sandbox go on."""

from __future__ import annotations

from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, in_use, noticing_loss, standing
from torpor.model.lifecycle import RESUME


async def resume(plane: Plane, owned: Owned) -> None:
    """Resume a sandbox; fine if it runs. Raises NotFound, SandboxLost, Conflict, and what the host raises."""
    async with in_use(plane, owned):
        await standing(plane, owned)
        async with noticing_loss(plane, owned), plane.gate.passage(owned.id, RESUME) as crossing:
            if not crossing.holds:
                await plane.host.resume(owned.id)
