"""Delete: close what runs, then forget it."""

from __future__ import annotations

from torpor.control.reconcile import reconcile_one
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, known
from torpor.model.lifecycle import DELETE, SETTLED


async def delete(plane: Plane, owned: Owned) -> None:
    """Remove a sandbox and all it has; fine if it is deleted already, and one deletion for all who ask at once.

    A passage that is under way ends first. Raises NotFound for one that is unknown or another workspace's, and what the
    host raises.
    """
    sandbox = await known(plane, owned)
    if sandbox.state not in SETTLED:
        await reconcile_one(plane, owned.id)  # waits for what is under way; if an answer was lost, learns the truth
    async with plane.gate.passage(owned.id, DELETE) as crossing:
        if not crossing.holds:
            await plane.host.close(owned.id)
