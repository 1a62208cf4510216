"""Delete: close what runs or sleeps, then forget it."""

from __future__ import annotations

from collections.abc import Callable

from torpor.control.reconcile import reconcile_one
from torpor.control.service.passage import reading_of
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, known
from torpor.control.service.snapshots import tidy
from torpor.errors import Conflict
from torpor.model.lifecycle import DELETE, SETTLED
from torpor.model.sandbox import Sandbox

# How often a sandbox may be found on its way somewhere else.
_TRIES = 5


async def delete(plane: Plane, owned: Owned, is_wanted: Callable[[Sandbox], bool] | None = None) -> None:
    """Remove a sandbox and all it has but its checkpoints; fine if it is deleted already.

    `is_wanted` is as in `Gate.passage`. For all who ask at once there is one deletion, and a passage that is under way
    ends first. Raises NotFound for one that is unknown or another workspace's, and what the host raises.
    """
    for left in reversed(range(_TRIES)):
        sandbox = await known(plane, owned)
        if sandbox.state not in SETTLED:
            await reconcile_one(plane, owned.id)  # waits for what is under way; if an answer was lost, learns the truth
        try:
            await _delete(plane, owned, is_wanted)
        except Conflict:  # another verb came between, and its answer was lost
            if not left:
                raise
        else:
            return


async def _delete(plane: Plane, owned: Owned, is_wanted: Callable[[Sandbox], bool] | None) -> None:
    async with plane.gate.passage(owned.id, DELETE, is_wanted) as crossing:
        if not crossing.holds:
            crossing.reading = reading_of(await plane.host.close(owned.id))
    if not crossing.holds:
        await tidy(plane, owned.id)
