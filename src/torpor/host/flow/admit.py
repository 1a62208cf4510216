"""admit: room for a machine, had before anything of it is made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from torpor.host.host import Host
from torpor.model.capacity import Need
from torpor.model.ids import SandboxId, TemplateName
from torpor.storage.volume import ensure_room


@asynccontextmanager
async def admitted(
    host: Host, sandbox: SandboxId, need: Need, *, taking: TemplateName | None = None
) -> AsyncIterator[None]:
    """Hold room for a sandbox's machine while the block brings it to life and enters it among the living.

    Spares give way to it, but not that of the template whose spare it is `taking`. Raises NoCapacity.
    """
    with host.admission.room(sandbox, need):
        await host.spares.make_way(taking)
        yield


async def reserve(host: Host, sandboxes: Sequence[SandboxId], need: Need, for_s: float) -> None:
    """Hold room for machines that are to begin within a time; deleting one of them gives its room up.

    Raises NoCapacity, or OutOfSpace; nothing is held then.
    """
    ensure_room(host.layout, 0)
    host.admission.reserve(sandboxes, need, for_s)
    await host.spares.make_way(None)
