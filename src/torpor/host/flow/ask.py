"""exec and files: ask the guest of a sandbox that lives here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from torpor.errors import Failed, OutcomeUnknown, SandboxLost
from torpor.guest.client import Guest
from torpor.host.host import Host
from torpor.host.live import Incarnation
from torpor.model.ids import SandboxId

# A process whose sockets are closed is gone after less than this, in seconds, unless it closed only the sockets.
_END_S = 2.0


@asynccontextmanager
async def guest_of(host: Host, sandbox: SandboxId) -> AsyncIterator[Guest]:
    """Yield the guest of a living sandbox, to be asked within the block.

    What is under way in it when the sandbox falls asleep waits, and goes on when it wakes. Raises NotFound if it does
    not live here, Busy if it sleeps, and SandboxLost if its machine has died, before or meanwhile.
    """
    guest = await host.live.get(sandbox).reach(host.connect_guest)
    try:
        yield guest
    except OutcomeUnknown as error:
        # The line broke off. If that is because the machine is no more, say so; its end is heard of a little later.
        # By now it may be another machine than at first, if it slept meanwhile; and none if that was what ended it.
        now = host.live.find(sandbox)
        if now is None or now.guest is not guest:
            raise
        if guest.closed.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await now.machine.wait_gone()
        if now.machine.alive:
            await _blame_the_disk(now)
            raise
        raise SandboxLost(f"the machine of the sandbox {sandbox} ended meanwhile: {now.machine.end}") from error


async def _blame_the_disk(incarnation: Incarnation) -> None:
    """Raise OutcomeUnknown that says so if the machine stood still because the host's disk is full."""
    try:
        was_full = not incarnation.stands_still and await incarnation.machine.revive()
    except SandboxLost:
        raise
    except Failed:  # it does not answer now, which is no reason to call it lost
        return
    if was_full:
        raise OutcomeUnknown(
            f"the sandbox {incarnation.id} stood still because the host's disk is full; it goes on when there is room",
            hint="make room on the host; `torpor doctor` says how much there is",
        )
