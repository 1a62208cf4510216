"""Machines stand still while the host's disk is nearly full, so that none of them finds it full.

A full volume is no danger: its file system refuses a write before it is made, and the VMM stops the guest, which loses
nothing. A full disk below a volume, or below the records, is one: a write that was taken already would fail later, when
nobody is there any more to be told. So machines are stopped while something is left, and go on when there is room
again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from torpor.errors import TorporError
from torpor.host.live import Incarnation, Live
from torpor.kit.beside import beside
from torpor.storage.layout import Layout
from torpor.storage.room import MIB, free_and_total

_log = structlog.get_logger(__name__)
# In a quarter of a second guests can write some hundred MiB; what is stopped already is looked at less often.
_EVERY_S, _SCARCE_EVERY_S = 0.25, 1.0


def left_for_guests(layout: Layout, meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return how many bytes of the disk below a data directory nobody has taken yet.

    Above a volume, what is written and not on the disk yet has taken its room already. Raises OSError.
    """
    free = free_and_total(layout.home)[0]
    if layout.volume_limit is None:
        return free
    waiting = re.findall(r"^(?:Dirty|Writeback):\s*(\d+) kB", meminfo.read_text(), re.MULTILINE)
    return free - sum(int(size) for size in waiting) * 1024


@dataclass(slots=True)
class Scarcity:
    """Stops machines while less than half of the reserve is `left`, and lets them go on once all of it is."""

    live: Live
    reserve: int
    left: Callable[[], int]
    is_scarce: bool = False

    async def look(self) -> None:
        """Look once, and do what is to be done."""
        left = self.left()
        was_scarce = self.is_scarce
        self.is_scarce = left < (self.reserve if was_scarce else self.reserve // 2)
        if self.is_scarce != was_scarce:
            says = "machines stand still: the host's disk is nearly full" if self.is_scarce else "machines go on"
            _log.warning(says, left_mib=left // MIB, reserve_mib=self.reserve // MIB)
        for incarnation in self.live.all():
            if self.is_scarce or incarnation.starved:
                await self._tell(incarnation)

    async def _tell(self, incarnation: Incarnation) -> None:
        """Stop a machine or let it go on, unless a verb is at work on it: then it is seen to by the next look."""
        if self.live.is_busy(incarnation.id) or not incarnation.machine.alive:
            return
        async with self.live.lock(incarnation.id):
            if self.live.find(incarnation.id) is not incarnation:
                return
            try:
                if not incarnation.stands_still:  # else it is stopped, and to go on when somebody says so
                    await (incarnation.machine.pause() if self.is_scarce else incarnation.machine.resume())
                incarnation.starved = self.is_scarce
            except TorporError as error:
                _log.warning("a machine does not answer", sandbox=incarnation.id, error=error.message)


@asynccontextmanager
async def sparing(live: Live, layout: Layout) -> AsyncIterator[None]:
    """Keep machines from filling the disk below a data directory while the block lasts."""
    async with beside(_look_again_and_again(Scarcity(live, layout.reserve, partial(left_for_guests, layout)))):
        yield


async def _look_again_and_again(scarcity: Scarcity) -> None:
    while True:
        await asyncio.sleep(_SCARCE_EVERY_S if scarcity.is_scarce else _EVERY_S)
        try:
            await scarcity.look()
        except OSError as error:
            _log.warning("the host's disk could not be looked at", error=str(error))
