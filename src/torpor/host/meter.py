"""What sandboxes use: processor time and memory of their machines, counted on over all their incarnations.

Processor time is the kernel's, always exact. Memory is looked at now and then, and what was held at one look counts
until the next; what was held before the first counts as it is found there. So readings never go back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from torpor.host.record import Counted, MachineRecord
from torpor.model.usage import Reading


def now_s() -> float:
    """Return the seconds since the host was booted, those in which it was suspended too: the same for every process."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Spender(Protocol):
    """What uses the processor: a machine."""

    def cpu_seconds(self) -> float | None:
        """Return the processor time that it has used since it began; None once it has ended."""


class Meter:
    """Counts what one sandbox uses while one machine is its, since `began`, in seconds after the host's boot.

    `before`: what had been counted by then.
    """

    def __init__(self, machine: Spender, before: Reading, now: Callable[[], float] = now_s) -> None:
        self._machine, self._before, self._now = machine, before, now
        # What it has used of the processor by now, before it was this sandbox's, too.
        self._cpu = machine.cpu_seconds() or 0.0
        self._area = before.resident_byte_seconds
        self._held: int | None = None
        self.began = self._at = now()

    @classmethod
    def going_on(cls, machine: Spender, record: MachineRecord, counted: Counted | None) -> Meter:
        """Return the meter of a machine that was taken over; `counted` is what was noted last while it was another's.

        The machine held memory also while nobody looked.
        """
        meter = cls(machine, record.counted)
        meter.began = meter._at = min(record.began, meter._at)
        if counted is not None and counted.at >= record.began:  # else that is of an earlier machine
            meter._area = max(meter._area, counted.resident_byte_seconds)
            meter._held, meter._at = counted.held, counted.at
            meter._cpu = max(meter._cpu, counted.cpu_seconds - record.counted.cpu_seconds)
        return meter

    def take(self, held: int | None) -> None:
        """Take note of how much memory the machine holds now; None if it has ended."""
        now, rate = self._now(), held if self._held is None else self._held
        self._area += (rate or 0) * (now - self._at)
        self._held, self._at = held or 0, now

    def add(self, cpu_seconds: float, resident_byte_seconds: float) -> None:
        """Count in what was used besides, by another machine."""
        self._area += resident_byte_seconds
        before = self._before
        self._before = Reading(before.cpu_seconds + cpu_seconds, before.resident_byte_seconds + resident_byte_seconds)

    @property
    def before(self) -> Reading:
        """What had been counted before the machine was this sandbox's."""
        return self._before

    def reading(self, disk_bytes: int) -> Reading:
        """Return what has been used by now, with what the disk takes up."""
        self._look()
        held = self._held or 0
        return Reading(
            cpu_seconds=self._spent,
            resident_byte_seconds=self._area + held * (self._now() - self._at),
            resident_bytes=held,
            disk_bytes=disk_bytes,
        )

    def counted(self) -> Counted:
        """Return what is to be noted."""
        self._look()
        return Counted(self._at, self._spent, self._area, self._held)

    @property
    def _spent(self) -> float:
        # Of a machine that ended before it was looked at it is not known what it had used before it was the sandbox's.
        return max(0.0, self._before.cpu_seconds + self._cpu)

    def _look(self) -> None:
        if (spent := self._machine.cpu_seconds()) is not None:
            self._cpu = spent
        elif self._held != 0:
            self.take(None)
