"""pause and resume: a machine that stands still, in memory."""

from __future__ import annotations

from torpor.errors import FreezeFailed
from torpor.host.flow.stillness import go_on, stand_still
from torpor.host.host import Host
from torpor.host.live import Incarnation
from torpor.host.record import mark_paused, unmark_paused
from torpor.host.trouble import translated
from torpor.kit.faultpoints import reached
from torpor.kit.shielded import shielded
from torpor.model.ids import SandboxId


async def pause(host: Host, sandbox: SandboxId) -> None:
    """Let a sandbox stand still; fine if it does.

    Raises NotFound, Busy if it sleeps, SandboxLost; FreezeFailed or OutOfSpace, and then it runs on.
    """
    async with host.live.lock(sandbox):
        await shielded(_pause(host, host.live.get(sandbox)))


async def _pause(host: Host, incarnation: Incarnation) -> None:
    # Not as one that leaves: if its machine dies now, nobody is to wait for it to go on in another one.
    await stand_still(incarnation, host.connect_guest, leaving=False)
    reached("pause.stopped")
    try:
        with translated(FreezeFailed, "the pause was not noted"):
            mark_paused(incarnation.place.folder)
    except BaseException:
        await go_on(incarnation, host.connect_guest)
        raise
    incarnation.paused = True


async def resume(host: Host, sandbox: SandboxId) -> None:
    """Let a paused sandbox go on; fine if it runs. Raises as `pause` does, and what going on raises."""
    async with host.live.lock(sandbox):
        await shielded(_resume(host, host.live.get(sandbox)))


async def _resume(host: Host, incarnation: Incarnation) -> None:
    unmark_paused(incarnation.place.folder)  # from here on it is to go on, whoever has to see to that
    try:
        await go_on(incarnation, host.connect_guest)
    finally:
        incarnation.paused = incarnation.stands_still  # it goes on, whether its guest has confirmed that or not
