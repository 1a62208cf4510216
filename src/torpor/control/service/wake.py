"""Wake: let a hibernated sandbox go on where it stopped."""

from __future__ import annotations

from torpor.control.service.plane import Plane
from torpor.control.service.reach import order_of
from torpor.control.service.sandboxes import Owned, in_use, noticing_loss, set_life, standing
from torpor.model.lifecycle import WAKE
from torpor.model.sandbox import Sandbox
from torpor.wire import host


async def wake(plane: Plane, owned: Owned, ttl_seconds: int | None = None) -> Sandbox:
    """Wake a sandbox, once for all who ask at the same time; fine if it runs.

    With `ttl_seconds` it ends that long from now; its end is kept where none is given. If it definitely fails, it
    sleeps as before. Raises NotFound, SandboxLost, Conflict, and what the host raises.
    """
    async with in_use(plane, owned):
        await standing(plane, owned)
        async with noticing_loss(plane, owned), plane.gate.passage(owned.id, WAKE) as crossing:
            if not crossing.holds:
                born = await plane.host.wake(owned.id, host.Wake(network=order_of(crossing.sandbox.network)))
                crossing.learn(boot_ms=born.boot_ms, guest_ip=born.guest_ip)
    if ttl_seconds is not None:
        return await set_life(plane, owned, ttl_seconds, persistent=None)
    return crossing.sandbox
