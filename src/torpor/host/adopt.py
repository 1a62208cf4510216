"""Taking over a sandbox whose machine has outlived an earlier host agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from torpor.errors import TorporError
from torpor.guest.channel import Channel
from torpor.guest.client import Guest
from torpor.host.live import ConnectGuest, Incarnation, Live
from torpor.host.meter import Meter
from torpor.host.network_notes import read_egress, read_slot
from torpor.host.record import BASE, MachineRecord, is_marked_paused, read_usage
from torpor.host.unreachable import Unreachable
from torpor.host.volume_notes import read_volumes
from torpor.host.volumes import take_back
from torpor.kit.beside import beside
from torpor.kit.files import sweep
from torpor.kit.shielded import shielded
from torpor.network.absent import NoNetwork, Nowhere
from torpor.network.contract import Network, Slot
from torpor.storage.frozen import read as read_frozen
from torpor.storage.named_volumes import NamedVolumes
from torpor.vmm.driver import Place, Survivors

_log = structlog.get_logger(__name__)
# What did not answer is tried again after this, in seconds, and then after twice as long each time.
_FIRST_S, _LONGEST_S = 1.0, 30.0

# Tries to take over what was out of reach, and tells whether that was settled.
TakeOver = Callable[[Unreachable], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Found:
    """What outlived an earlier host agent: machines, the slots that connect them, and where their volumes are kept."""

    survivors: Survivors
    network: Network = field(default_factory=NoNetwork)
    volumes: NamedVolumes | None = None


async def adopt(found: Found, folder: Path, record: MachineRecord, *, within_s: float) -> Incarnation:
    """Take over the machine that is on record in a sandbox's folder, and its slot, if it answers within a time.

    It runs on, unless somebody has paused it, whatever was done with it when its host agent died. There is no line to
    its guest yet. Raises SandboxLost if it is no more; Unavailable, RestoreFailed, SnapshotCorrupt, Unsupported or
    OSError if it cannot be worked with now. Then, and where this is cancelled, it is left as it is.
    """
    place = Place(record.sandbox, folder)
    machine = await found.survivors.adopt(place, record.trace, within_s=within_s)
    slot: Slot = Nowhere()
    try:
        sweep(folder)
        base, paused, egress = read_frozen(folder / BASE), is_marked_paused(folder), read_egress(folder)
        volumes = read_volumes(folder)
        if found.volumes is not None:
            take_back(found.volumes, folder, volumes)
        if noted := read_slot(folder):
            slot = await found.network.adopt(noted, egress)
        if not paused:
            await machine.resume()
        meter = Meter.going_on(machine, record, read_usage(folder))
    except BaseException:
        await shielded(machine.leave())
        await slot.leave()
        raise
    incarnation = Incarnation(record.sandbox, base, place, machine, Guest(Channel.lost()), meter, record.boot_ms)
    incarnation.stands_still = incarnation.paused = paused
    incarnation.adopted, incarnation.slot, incarnation.egress = True, slot, egress
    incarnation.volumes = volumes
    _log.info("took over a machine", sandbox=record.sandbox, pid=machine.pid, paused=paused)
    return incarnation


@asynccontextmanager
async def greeting(
    live: Live, connect: ConnectGuest, take_over: TakeOver | None = None, *, first_s: float = _FIRST_S
) -> AsyncIterator[None]:
    """Make the lines to the guests that were taken over while the block lasts, and take over what was out of reach.

    They may stand still, as their host agent has died in the middle of something: they are told to go on. Each is
    tried again and again, at first after `first_s` seconds.
    """
    works = [_greet(live, each, connect, first_s) for each in live.all() if each.adopted]
    if take_over is not None:
        works += [_reach(live, each, connect, take_over, first_s) for each in live.out_of_reach()]
    async with beside(*works):
        yield


async def _reach(live: Live, one: Unreachable, connect: ConnectGuest, take_over: TakeOver, first_s: float) -> None:
    delay_s = first_s
    while True:
        await asyncio.sleep(delay_s)
        delay_s = min(2 * delay_s, _LONGEST_S)
        try:
            if await take_over(one):
                break
        except (TorporError, OSError) as error:
            _log.warning("a machine cannot be settled yet", sandbox=one.id, error=str(error))
    if (incarnation := live.find(one.id)) is not None:
        await _greet(live, incarnation, connect, first_s)


async def _greet(live: Live, incarnation: Incarnation, connect: ConnectGuest, first_s: float) -> None:
    """Make the line to a guest, unless somebody else does, or it is to stand still, or ends."""
    delay_s = first_s
    while live.find(incarnation.id) is incarnation and incarnation.is_cut_off and not incarnation.paused:
        try:
            await incarnation.reach(connect)
        except (TorporError, OSError) as error:
            _log.warning("the guest of a sandbox does not answer yet", sandbox=incarnation.id, error=str(error))
        else:
            return
        await asyncio.sleep(delay_s)
        delay_s = min(2 * delay_s, _LONGEST_S)
