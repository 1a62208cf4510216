"""The heartbeat of the ledger: what lives on the host is read and counted, every few seconds."""

from __future__ import annotations

import structlog

from torpor.control.service.passage import reading_of
from torpor.control.service.plane import Plane
from torpor.errors import TorporError
from torpor.kit.shielded import shielded
from torpor.model.ids import SandboxId
from torpor.wire import host

_log = structlog.get_logger("torpor.control")


async def meter(plane: Plane, every_s: float = 10.0) -> None:
    """Take a heartbeat every `every_s` seconds, for ever. Ends by cancellation, after a last one."""
    try:
        while True:
            await plane.clock.sleep(every_s)
            await beat_or_log(plane)
    finally:
        await shielded(beat_or_log(plane))


async def beat(plane: Plane) -> dict[str, host.Incarnation]:
    """Bring the ledger up to now for every sandbox that the host says it has: asleep, or with a machine that lives.

    Returns what the host has. Of others it is not known that they were there until now; the reconciler finds out what
    became of them. Raises HostUnreachable, and Failed where it cannot be written.
    """
    now = plane.clock.now()  # before the question: what the answer tells was so then, or later
    found = await plane.host.incarnations()
    readings = {SandboxId(name): reading_of(one.usage) for name, one in found.items() if one.alive}
    await plane.store.beat(now, {name: reading for name, reading in readings.items() if reading is not None})
    return found


async def beat_or_log(plane: Plane) -> None:
    """Take a heartbeat; one that fails is logged, and made up for by the next."""
    try:
        await beat(plane)
    except TorporError as error:
        _log.warning("no heartbeat", error=error.message)
