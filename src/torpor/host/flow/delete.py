"""delete: close, then forget."""

from __future__ import annotations

from torpor.host.host import Host
from torpor.kit.files import remove_tree
from torpor.kit.shielded import shielded
from torpor.model.ids import SandboxId


async def delete(host: Host, sandbox: SandboxId) -> None:
    """End a sandbox; after it only its snapshots are on the host. One that is not here is already deleted."""
    async with host.live.lock(sandbox):
        await shielded(_forget(host, sandbox))


async def _forget(host: Host, sandbox: SandboxId) -> None:
    if (there := host.live.take(sandbox)) is not None:
        await there.aclose()
    remove_tree(host.layout.sandboxes / sandbox)
