"""pause and resume: a machine that stands still, in memory."""

from __future__ import annotations

from torpor.host.flow.stillness import go_on, stand_still
from torpor.host.host import Host
from torpor.host.live import Incarnation
from torpor.kit.shielded import shielded
from torpor.model.ids import SandboxId


async def pause(host: Host, sandbox: SandboxId) -> None:
    """Let a sandbox stand still; fine if it does. Raises NotFound, Busy if it sleeps, SandboxLost."""
    async with host.live.lock(sandbox):
        await shielded(_pause(host.live.get(sandbox)))


async def _pause(incarnation: Incarnation) -> None:
    # Not as one that leaves: if its machine dies now, nobody is to wait for it to go on in another one.
    await stand_still(incarnation, leaving=False)
    incarnation.paused = True


async def resume(host: Host, sandbox: SandboxId) -> None:
    """Let a paused sandbox go on; fine if it runs. Raises as `pause` does, and what going on raises."""
    async with host.live.lock(sandbox):
        await shielded(_resume(host.live.get(sandbox)))


async def _resume(incarnation: Incarnation) -> None:
    try:
        await go_on(incarnation)
    finally:
        incarnation.paused = incarnation.stands_still  # it goes on, whether its guest has confirmed that or not
