"""Looking at what machines use, as long as the host agent runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from torpor.host.live import Incarnation, Live
from torpor.host.record import write_usage
from torpor.kit.beside import beside
from torpor.model.usage import Reading

_log = structlog.get_logger(__name__)
_EVERY_S = 5.0


async def measure(incarnation: Incarnation) -> Reading:
    """Look at what a sandbox's machine holds, and return what it has used; if that cannot be seen, as it was seen last.

    Never fails: it stands between others' steps.
    """
    try:
        incarnation.meter.take(await asyncio.to_thread(incarnation.machine.resident_bytes))
    except (OSError, RuntimeError, ValueError) as error:  # no descriptor, no thread, no sense
        _log.warning("what a machine holds cannot be seen", sandbox=incarnation.id, error=str(error))
    return incarnation.usage()


@asynccontextmanager
async def metering(live: Live, every_s: float = _EVERY_S) -> AsyncIterator[None]:
    """Look at every machine while the block lasts, every `every_s` seconds, and note what they used."""
    async with beside(_look_again_and_again(live, every_s)):
        yield


async def _look_again_and_again(live: Live, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        await measure_all(live)


async def measure_all(live: Live) -> None:
    """Look at every machine, and note what they have used."""
    for incarnation in live.all():
        await measure(incarnation)
        if live.find(incarnation.id) is incarnation:  # else its folder is another one's by now
            note(incarnation)


def note(incarnation: Incarnation) -> None:
    """Note what a sandbox has used, so that the next host agent counts on from there."""
    try:
        write_usage(incarnation.place.folder, incarnation.meter.counted())
    except OSError as error:
        _log.warning("what a sandbox used is not noted", sandbox=incarnation.id, error=str(error))
