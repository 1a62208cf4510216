"""exec and files: ask the guest of a sandbox that lives here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from torpor.errors import OutcomeUnknown, SandboxLost
from torpor.guest.client import Guest
from torpor.host.host import Host
from torpor.host.live import Incarnation
from torpor.model.ids import SandboxId
from torpor.wire.host import ExecOrder

# A process whose sockets are closed is gone after less than this, in seconds, unless it closed only the sockets.
_END_S = 2.0


@asynccontextmanager
async def guest_of(host: Host, sandbox: SandboxId) -> AsyncIterator[Guest]:
    """Yield the guest of a living sandbox, to be asked within the block.

    Raises NotFound if it does not live here, and SandboxLost if its machine has died, before or meanwhile.
    """
    incarnation = host.live.get(sandbox)
    guest = await incarnation.reach(host.connect_guest)
    try:
        yield guest
    except OutcomeUnknown as error:
        # The line broke off. If that is because the machine is no more, say so; its end is heard of a little later.
        if guest.closed.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await incarnation.machine.wait_gone()
        if incarnation.machine.alive:
            raise
        raise SandboxLost(f"the machine of the sandbox {sandbox} ended meanwhile: {incarnation.machine.end}") from error


def with_environment(incarnation: Incarnation, order: ExecOrder) -> ExecOrder:
    """Return the order with the sandbox's own environment below the order's."""
    return order.model_copy(update={"env": {**incarnation.env, **order.env}})
