"""rollback: restore a checkpoint under the sandbox's own identity, in its place."""

from __future__ import annotations

import asyncio
import secrets

from torpor.errors import RestoreFailed
from torpor.host.flow.restore import Birth, restore
from torpor.host.host import Host
from torpor.host.live import Incarnation, Sleeper
from torpor.host.trouble import translated
from torpor.kit.files import remove_tree
from torpor.kit.shielded import shielded
from torpor.model.identity import Identity
from torpor.model.ids import SandboxId, SnapshotId
from torpor.vmm.driver import Place


async def rollback(host: Host, sandbox: SandboxId, snapshot: SnapshotId) -> Incarnation:
    """Let a sandbox be again as it was in a snapshot: running, paused, asleep, dead or not here at all.

    What it was is ended only once the snapshot lives; on error it is as before. Raises NotFound, SnapshotCorrupt, and
    what restoring raises.
    """
    async with host.live.lock(sandbox):
        return await shielded(_replace(host, sandbox, snapshot))


async def _replace(host: Host, sandbox: SandboxId, snapshot: SnapshotId) -> Incarnation:
    name = f"next-{secrets.token_hex(8)}"
    aside = Place(name, host.layout.sandboxes / name)
    opening = host.preparer.prepare(await asyncio.to_thread(host.snapshots.open, snapshot), aside)
    incarnation = await restore(opening, Birth(Identity(sandbox), event="wake"))
    try:
        with translated(RestoreFailed, "the sandbox's place could not be taken"):
            before = _change_places(host, incarnation, sandbox)
    except BaseException:
        await incarnation.aclose()
        raise
    host.live.add(incarnation)
    if before is not None:
        await before.aclose()
    return incarnation


def _change_places(host: Host, incarnation: Incarnation, sandbox: SandboxId) -> Incarnation | Sleeper | None:
    """Give the new incarnation the sandbox's place, and what was there another one; return that. All or nothing."""
    place = Place(sandbox, host.layout.sandboxes / sandbox)
    before = host.live.find(sandbox) or host.live.sleeper(sandbox)
    if before is None:
        remove_tree(place.folder)
        incarnation.settle(place)
        return None
    name = f"former-{secrets.token_hex(8)}"
    before.settle(Place(name, host.layout.sandboxes / name))
    try:
        incarnation.settle(place)
    except BaseException:
        before.settle(place)
        raise
    return before
