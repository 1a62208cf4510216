"""Taking over a sandbox whose machine has outlived an earlier host agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from torpor.errors import TorporError
from torpor.guest.channel import Channel
from torpor.guest.client import Guest
from torpor.host.live import ConnectGuest, Incarnation, Live
from torpor.host.meter import Meter
from torpor.host.record import MachineRecord, is_marked_paused, read_usage
from torpor.host.sleep import BASE
from torpor.kit.files import sweep
from torpor.kit.shielded import wait_ended
from torpor.storage.frozen import read as read_frozen
from torpor.vmm.driver import Place, Survivors

_log = structlog.get_logger(__name__)


async def adopt(survivors: Survivors, folder: Path, record: MachineRecord) -> Incarnation:
    """Take over the machine that is on record in a sandbox's folder.

    It runs on, unless somebody has paused it, whatever was done with it when its host agent died. There is no line to
    its guest yet. Raises SandboxLost if it is no more, RestoreFailed, SnapshotCorrupt or Unsupported if it cannot be
    worked with; it is ended then.
    """
    place = Place(record.sandbox, folder)
    machine = await survivors.adopt(place, record.trace)
    try:
        sweep(folder)
        base, paused = read_frozen(folder / BASE), is_marked_paused(folder)
        if not paused:
            await machine.resume()
    except BaseException:
        await machine.aclose()
        raise
    meter = Meter.going_on(machine, record, read_usage(folder))
    incarnation = Incarnation(record.sandbox, base, place, machine, Guest(Channel.lost()), meter, record.boot_ms)
    incarnation.stands_still = incarnation.paused = paused
    incarnation.adopted = True
    return incarnation


@asynccontextmanager
async def greeting(live: Live, connect: ConnectGuest) -> AsyncIterator[None]:
    """Make the lines to the guests that were taken over while the block lasts.

    They may stand still, as their host agent has died in the middle of something: they are told to go on.
    """
    tasks = [asyncio.create_task(_greet(each, connect)) for each in live.all() if each.adopted and not each.paused]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            await wait_ended(task)


async def _greet(incarnation: Incarnation, connect: ConnectGuest) -> None:
    try:
        await incarnation.reach(connect)
    except TorporError as error:
        _log.warning("the guest of a sandbox does not answer yet", sandbox=incarnation.id, error=error.message)
