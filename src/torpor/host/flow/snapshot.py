"""snapshot: freeze, let it run on."""

from __future__ import annotations

from torpor.host.flow.freeze import FreezeOrder, freeze
from torpor.host.host import Host
from torpor.kit.shielded import shielded
from torpor.model.ids import SandboxId
from torpor.model.snapshot import Snapshot


async def snapshot(host: Host, sandbox: SandboxId, order: FreezeOrder) -> Snapshot:
    """Take a checkpoint of a running or paused sandbox. Raises as `freeze` does, NotFound, Busy if it sleeps."""
    async with host.live.lock(sandbox):
        return await shielded(freeze(host, host.live.get(sandbox), order))
