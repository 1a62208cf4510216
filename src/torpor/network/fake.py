"""A network that keeps its slots in memory: for tests of everything above the contract."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field

from torpor.errors import RestoreFailed, TorporError
from torpor.model.network import Egress
from torpor.network.absent import Nowhere
from torpor.network.addresses import GUEST
from torpor.network.contract import Denied, Slot


def is_open(inode: int) -> bool:
    """Tell whether this program has a file open, by its inode."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it is closed by now
            if os.stat(f"/proc/self/fd/{name}").st_ino == inode:
                return True
    return False


@dataclass
class FakeSlot:
    """A slot whose tap is a file in memory. `gate`: whether it is open. `owned`: whether a program has it still."""

    name: str
    network: FakeNetwork
    egress: Egress = field(default_factory=Egress)
    gate: bool = False
    owned: bool = True
    guest_ip: str | None = field(default=str(GUEST.ip), init=False)
    counted: list[Denied] = field(default_factory=list)
    taps: list[int] = field(default_factory=list)

    def open_tap(self) -> int | None:
        self.network.maybe_fail("open_tap")
        if any(is_open(tap) for tap in self.taps):
            raise RestoreFailed("somebody has the tap")
        descriptor = os.memfd_create(self.name, os.MFD_CLOEXEC)
        self.taps.append(os.fstat(descriptor).st_ino)
        return descriptor

    async def change(self, egress: Egress) -> None:
        if egress != self.egress:
            self.network.maybe_fail("change")
            self.egress = egress

    def open_gate(self) -> None:
        self.network.maybe_fail("open_gate")
        self.gate = True

    async def denied(self) -> list[Denied]:
        return list(self.counted)

    async def leave(self) -> None:
        self.owned = False

    async def aclose(self) -> None:
        if self.owned:
            self.owned = self.gate = False
            self.network.slots.pop(self.name, None)


@dataclass
class FakeNetwork:
    """Makes fake slots. An error in `failures` is raised by the next call of that name: of `take`, or of a slot."""

    trouble: str = ""
    slots: dict[str, FakeSlot] = field(default_factory=dict)
    failures: dict[str, TorporError] = field(default_factory=dict)
    _made: int = 0

    def maybe_fail(self, step: str) -> None:
        """Raise what is to go wrong in this step."""
        if (error := self.failures.pop(step, None)) is not None:
            raise error

    async def take(self) -> Slot:
        self.maybe_fail("take")
        self._made += 1
        slot = FakeSlot(f"slot-{self._made}", self)
        self.slots[slot.name] = slot
        return slot

    async def adopt(self, name: str, egress: Egress) -> Slot:
        self.maybe_fail("adopt")
        found = self.slots.get(name)
        if found is None:
            return Nowhere()
        # Another program's object of the same slot.
        self.slots[name] = slot = FakeSlot(name, self, egress, gate=True, counted=found.counted, taps=found.taps)
        return slot

    async def discard(self, name: str) -> None:
        self.slots.pop(name, None)

    async def sweep(self, keep: Collection[str]) -> None:
        for name in set(self.slots) - set(keep):
            del self.slots[name]

    async def settled(self) -> None:
        """Nothing is done ahead."""
