"""exec and files: ask the guest of a sandbox that lives here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torpor.errors import OutcomeUnknown, SandboxLost
from torpor.guest.client import Guest
from torpor.host.host import Host
from torpor.host.live import Incarnation
from torpor.model.ids import SandboxId
from torpor.wire.host import ExecOrder


@contextmanager
def guest_of(host: Host, sandbox: SandboxId) -> Iterator[Guest]:
    """Yield the guest of a living sandbox, to be asked within the block.

    Raises NotFound if it does not live here, and SandboxLost if its machine has died, before or meanwhile.
    """
    incarnation = host.live.get(sandbox)
    try:
        yield incarnation.guest
    except OutcomeUnknown as error:
        # The line broke off. If that is because the machine is no more, say so.
        if incarnation.machine.alive:
            raise
        raise SandboxLost(f"the machine of the sandbox {sandbox} ended meanwhile") from error


def with_environment(incarnation: Incarnation, order: ExecOrder) -> ExecOrder:
    """Return the order with the sandbox's own environment below the order's."""
    return order.model_copy(update={"env": {**incarnation.env, **order.env}})
