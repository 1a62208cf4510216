"""Machines that their VMM has stopped because the host's disk was full: they go on when there is room again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from torpor.errors import TorporError
from torpor.host.live import Incarnation, Live
from torpor.kit.beside import beside

_log = structlog.get_logger(__name__)
_EVERY_S = 5.0


@asynccontextmanager
async def reviving(live: Live, every_s: float = _EVERY_S) -> AsyncIterator[None]:
    """Look after machines that stand still for want of room while the block lasts, every `every_s` seconds."""
    async with beside(_look_after(live, every_s)):
        yield


async def _look_after(live: Live, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        for incarnation in live.all():
            try:
                await revive(live, incarnation)
            except OSError as error:
                _log.warning("a machine could not be looked at", sandbox=incarnation.id, error=str(error))


async def revive(live: Live, incarnation: Incarnation) -> None:
    """Let a sandbox go on if its VMM has stopped it for want of room, unless it is to stand still or is gone."""
    async with live.lock(incarnation.id):  # not in the middle of a freeze, which would be of two instants then
        if not incarnation.machine.alive or incarnation.stands_still or live.find(incarnation.id) is not incarnation:
            return
        try:
            if await incarnation.machine.revive():
                _log.warning("a sandbox stood still because the host's disk is full", sandbox=incarnation.id)
        except TorporError as error:
            _log.warning("a machine does not answer", sandbox=incarnation.id, error=error.message)
