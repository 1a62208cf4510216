"""Sandboxes whose machines live, as far as can be told, and could not be taken over yet.

That a machine does not answer, or that its folder cannot be read, is not its end: neither is touched then, and both are
tried again. It ends with its own process, or when somebody wants it deleted.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from torpor.errors import TorporError, Unavailable
from torpor.host.meter import Meter
from torpor.host.network_notes import read_egress, read_slot
from torpor.host.record import BASE, MachineRecord, is_marked_paused, read_usage
from torpor.host.volume_notes import read_volumes
from torpor.kit.files import remove_tree
from torpor.kit.procfs import ProcessMark, cpu_seconds
from torpor.kit.shielded import shielded
from torpor.model.ids import SandboxId
from torpor.model.network import Egress
from torpor.model.usage import Reading
from torpor.model.volume import Attachment
from torpor.network.absent import NoNetwork
from torpor.network.contract import Network
from torpor.storage.frozen import Frozen
from torpor.storage.frozen import read as read_frozen
from torpor.vmm.driver import Place, Survivors


@dataclass(slots=True)
class Unreachable:
    """A sandbox out of reach, and why. `record` is what is noted of its machine; None where that cannot be read."""

    id: SandboxId
    place: Place
    survivors: Survivors
    record: MachineRecord | None
    reason: str
    network: Network = field(default_factory=NoNetwork)
    paused: bool = field(init=False)
    egress: Egress = field(init=False)
    volumes: tuple[Attachment, ...] = field(init=False)
    # What it came from; None where that cannot be read.
    base: Frozen | None = field(init=False)
    _meter: Meter | None = field(init=False, default=None)
    _found: set[ProcessMark] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        folder = self.place.folder
        self.paused, self.base, self.egress = is_marked_paused(folder), _base_of(folder), read_egress(folder)
        self.volumes = _volumes_of(folder)
        if self.record is not None:
            self._meter = Meter.going_on(_Process(self.record.trace.process), self.record, read_usage(folder))

    @property
    def pid(self) -> int | None:
        """The id of its machine's process, as far as it is known."""
        return None if self.record is None else self.record.trace.process.pid

    def refusal(self) -> Unavailable:
        """Return the error for who asks something of it."""
        return Unavailable(
            f"the machine of the sandbox {self.id} lives and cannot be reached: {self.reason}",
            hint="it is tried again; delete the sandbox if it is to be given up",
        )

    def usage(self) -> Reading:
        """Return what the sandbox has used, as far as that can be told."""
        if self._meter is not None:
            return self._meter.reading(0)
        counted = read_usage(self.place.folder)
        return Reading() if counted is None else Reading(counted.cpu_seconds, counted.resident_byte_seconds)

    def settle(self, place: Place) -> None:
        """Take another place, where nothing is yet. Raises OSError if it cannot be taken."""
        self._found.update(self.survivors.below(self.place.folder))  # they may be known by that name only
        self.place.folder.rename(place.folder)
        self.place = place

    async def end(self) -> None:
        """End its machine, whatever is known of it; what it wrote stays. Raises Failed if it does not end."""
        await shielded(self._end())

    async def _end(self) -> None:
        found = self._found | set(await asyncio.to_thread(self.survivors.below, self.place.folder))
        if self.record is not None:
            found.add(self.record.trace.process)
        for process in found:
            await self.survivors.end(process)
        if slot := read_slot(self.place.folder):
            await self.network.discard(slot)

    async def aclose(self) -> None:
        """End its machine and remove what it wrote. Raises Failed if it does not end."""
        await shielded(self._close())

    async def _close(self) -> None:
        await self._end()
        remove_tree(self.place.folder)


@dataclass(frozen=True, slots=True)
class _Process:
    """What is measured of a machine that nobody speaks with."""

    mark: ProcessMark

    def cpu_seconds(self) -> float | None:
        return cpu_seconds(self.mark.pid)


def _base_of(folder: Path) -> Frozen | None:
    try:
        return read_frozen(folder / BASE)
    except (TorporError, OSError):
        return None


def _volumes_of(folder: Path) -> tuple[Attachment, ...]:
    try:
        return read_volumes(folder)
    except (TorporError, OSError):
        return ()
