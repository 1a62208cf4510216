"""Standing still and going on: a guest that is stopped so that nothing in it notices but its clock."""

from __future__ import annotations

import asyncio

import structlog

from torpor.errors import Failed, OutcomeUnknown, Unavailable
from torpor.host.live import ConnectGuest, Incarnation
from torpor.kit.shielded import shielded

_log = structlog.get_logger(__name__)
# A guest that cannot stop its processes in time (a fork bomb, say) is stopped without its help.
QUIESCE_S = 10.0
# One that did not answer then is told to go on, but not waited for.
_HUNG_S = 2.0


async def stand_still(incarnation: Incarnation, connect: ConnectGuest, *, leaving: bool) -> None:
    """Stop a guest's processes, and then its machine. A line to it that is cut off is made anew first.

    Calls under way wait. New ones wait too, or are refused as Busy if it is `leaving` this machine. A guest that does
    not answer is stopped all the same; its calls cannot be carried over to another machine then. Idempotent. Raises
    SandboxLost if the machine has died, and then the line is as before.
    """
    if incarnation.stands_still:
        return
    try:
        await _quiesce(incarnation, connect, leaving=leaving)
        await incarnation.machine.pause()
    except BaseException:
        await shielded(_undo(incarnation))
        raise
    incarnation.stands_still = True


async def _undo(incarnation: Incarnation) -> None:
    """Let machine and guest go on, whichever of them had stopped by now."""
    if not incarnation.machine.alive:
        await incarnation.guest.aclose()  # nobody answers the calls that wait
        return
    try:
        await incarnation.machine.resume()  # the order to stop may have been late rather than lost
        async with asyncio.timeout(None if incarnation.guest.confirmed else _HUNG_S):
            await _thaw(incarnation)
    except (TimeoutError, Failed, OutcomeUnknown, Unavailable) as error:
        _log.warning("a guest did not confirm that it goes on", sandbox=incarnation.id, error=str(error))
    if incarnation.guest.suspended:
        await incarnation.guest.aclose()  # the machine has ended, and nobody has heard of it yet


async def _quiesce(incarnation: Incarnation, connect: ConnectGuest, *, leaving: bool) -> None:
    try:
        await incarnation.call_again(connect)
        await incarnation.guest.quiesce(timeout_s=QUIESCE_S, hooks=True, leaving=leaving)
    except (Failed, OutcomeUnknown, Unavailable) as error:
        _log.warning("a guest is stopped without its help", sandbox=incarnation.id, error=error.message)


async def go_on(incarnation: Incarnation, connect: ConnectGuest) -> None:
    """Let a machine run, set its guest's clock, and let its processes go on. Idempotent; not cut short.

    Raises SandboxLost if the machine has died, Failed or OutcomeUnknown if a guest that had stopped its processes does
    not confirm that they go on.
    """
    if incarnation.stands_still:
        await shielded(_go_on(incarnation, connect))


async def _go_on(incarnation: Incarnation, connect: ConnectGuest) -> None:
    confirmed = incarnation.guest.confirmed
    try:
        await incarnation.machine.resume()
    except BaseException:
        await incarnation.guest.aclose()  # nobody answers the calls that wait
        raise
    incarnation.stands_still = False
    try:
        if incarnation.is_cut_off:
            await incarnation.call_again(connect)  # which lets it go on too
        else:
            await _thaw(incarnation)
    except (Failed, OutcomeUnknown, Unavailable) as error:
        if confirmed:
            raise
        # It hung before, and does still.
        _log.warning("a guest did not confirm that it goes on", sandbox=incarnation.id, error=error.message)


async def _thaw(incarnation: Incarnation) -> None:
    """Let the guest's processes go on, and the calls."""
    try:
        await incarnation.guest.thaw()
    finally:
        incarnation.guest.release()
