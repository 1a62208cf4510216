"""delete: close, then forget."""

from __future__ import annotations

from torpor.host.host import Host
from torpor.kit.files import remove_tree
from torpor.model.ids import SandboxId


async def delete(host: Host, sandbox: SandboxId) -> None:
    """End a sandbox; after it nothing of it is on the host. One that is not here is already deleted."""
    async with host.live.lock(sandbox):
        incarnation = host.live.take(sandbox)
        if incarnation is not None:
            await incarnation.aclose()
        remove_tree(host.layout.sandboxes / sandbox)
