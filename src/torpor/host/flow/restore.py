"""restore: a snapshot, brought to life as a running incarnation. One of the two hard operations."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AsyncExitStack

from torpor.host.host import Host
from torpor.host.live import Incarnation
from torpor.kit.owning import own
from torpor.model.identity import Identity
from torpor.model.template import Template
from torpor.vmm.driver import Place


async def restore(host: Host, template: Template, identity: Identity, env: Mapping[str, str]) -> Incarnation:
    """Bring a snapshot to life under an identity. If any step fails, what was opened is closed, last first."""
    started = time.monotonic()
    place = Place(identity.sandbox_id, host.layout.sandboxes / identity.sandbox_id)
    async with AsyncExitStack() as undo:
        prepared = await own(undo, host.spares.take(template))  # a guest that answers and has no name yet
        prepared.settle(place)
        await prepared.machine.resume()
        await prepared.guest.adopt(identity)  # clock, entropy, hostname; acknowledged, else the restore fails
        boot_ms = round((time.monotonic() - started) * 1000)
        return Incarnation(
            identity.sandbox_id, template, place, prepared.machine, prepared.guest, dict(env), boot_ms, undo.pop_all()
        )
