"""Admission: no machine is begun that this host has not the room for, whoever else is about to begin one.

What is promised is counted from what is here: the machines that live, or may live though they are out of reach, and
those that are about to. So nothing has to be kept in step, and a host agent that was started anew counts right.

Between the decision and its effect there is no await: of two that want the last place, one gets it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torpor.errors import NoCapacity, OutOfSpace
from torpor.host.live import Incarnation, Live, Sleeper
from torpor.host.unreachable import Unreachable
from torpor.model.capacity import (
    MIB,
    NOTHING,
    OVERHEAD_BYTES,
    Limits,
    Need,
    Shortage,
    gib,
    mib,
    need_of,
    shortage,
    total,
)
from torpor.model.ids import SandboxId
from torpor.model.template import Template
from torpor.model.volume import Attachment, megabytes_of_copies

_HINT = "delete or hibernate a sandbox, or raise the limit; `torpor capacity` tells what is promised"


def need_of_machine(template: Template, volumes: Sequence[Attachment] = ()) -> Need:
    """Return what a machine of a template, or of what came from it, takes of this host.

    Of its volumes, those count that it has a copy of; the volumes themselves are counted as what they are.
    """
    return need_of(template.memory_mib, template.disk_gib) + Need(
        disk_bytes=megabytes_of_copies(volumes) * MIB, machines=0
    )


def need_of_living(found: Incarnation | Sleeper | Unreachable) -> Need:
    """Return what a sandbox takes of this host now; nothing of one that sleeps, or whose machine has ended.

    Of one that is out of reach, and of which little can be read, what its record tells.
    """
    if isinstance(found, Sleeper) or (isinstance(found, Incarnation) and not found.machine.alive):
        return NOTHING
    if found.base is not None:
        return need_of_machine(found.base.template, found.volumes)
    known = 0 if isinstance(found, Incarnation) or found.record is None else found.record.trace.image_bytes
    return Need(memory_bytes=known + OVERHEAD_BYTES)


class Admission:
    """Keeps what is promised on this host within limits. `now`: a clock that never goes back, in seconds.

    `kept`: to how many bytes all volumes can grow, attached or not.
    """

    def __init__(
        self,
        live: Live,
        limits: Limits,
        now: Callable[[], float] = time.monotonic,
        *,
        kept: Callable[[], int] = lambda: 0,
    ) -> None:
        self.limits = limits
        self._live, self._now, self._kept = live, now, kept
        self._begun: dict[object, Need] = {}
        self._reserved: dict[SandboxId, tuple[Need, float]] = {}

    def promised(self) -> Need:
        """Return what is promised: to what lives, is about to live or about to end, and to what has a reservation."""
        living = [need_of_living(each) for each in self._live.everything()]
        volumes = Need(disk_bytes=self._kept(), machines=0)
        return total([volumes, *living, *self._begun.values(), *(need for need, _ in self._reservations().values())])

    def fits(self, *needs: Need) -> bool:
        """Tell whether there is room for all of these beside what is promised."""
        return shortage(self.limits, self.promised(), total(needs)) is None

    @contextmanager
    def room(self, sandbox: SandboxId, need: Need) -> Iterator[None]:
        """Hold room for a sandbox's machine while the block brings it to life, and enters it among the living.

        What was reserved for it is used. Raises NoCapacity, and nothing is held then.
        """
        self.release(sandbox)
        self._demand(need)
        with self.holding(need):
            yield

    @contextmanager
    def holding(self, need: Need) -> Iterator[None]:
        """Count something as promised while the block runs, whether there is room for it or not."""
        token = object()
        self._begun[token] = need
        try:
            yield
        finally:
            del self._begun[token]

    @contextmanager
    def room_for_volume(self, size: int) -> Iterator[None]:
        """Hold room for a volume of so many bytes while the block makes it. Raises OutOfSpace."""
        need = Need(disk_bytes=size, machines=0)
        if (lacking := shortage(self.limits, self.promised(), need)) is not None:
            raise OutOfSpace(
                f"the host has no room for another volume: {gib(lacking.used)} of {gib(lacking.limit)} GiB of disk are"
                f" promised, and {mib(size)} MiB more are wanted",
                hint="delete volumes or sandboxes, or raise the limit; `torpor capacity` tells what is promised",
            )
        with self.holding(need):
            yield

    def reserve(self, sandboxes: Sequence[SandboxId], need: Need, for_s: float) -> None:
        """Hold room for several machines, each with such a need, for so long or until they begin or are released.

        Raises NoCapacity, and nothing is held then.
        """
        for sandbox in sandboxes:
            self.release(sandbox)
        self._demand(total([need] * len(sandboxes)))
        self._reserved |= dict.fromkeys(sandboxes, (need, self._now() + for_s))

    def release(self, sandbox: SandboxId) -> None:
        """Give up what is reserved for a sandbox, if anything is."""
        self._reserved.pop(sandbox, None)

    def _reservations(self) -> dict[SandboxId, tuple[Need, float]]:
        now = self._now()
        self._reserved = {sandbox: held for sandbox, held in self._reserved.items() if held[1] > now}
        return self._reserved

    def _demand(self, need: Need) -> None:
        if (lacking := shortage(self.limits, self.promised(), need)) is not None:
            raise refusal(lacking)


def refusal(lacking: Shortage) -> NoCapacity:
    """Return the error for a host without room for more machines."""
    what = "another machine" if lacking.machines_wanted == 1 else f"{lacking.machines_wanted} more machines"
    return NoCapacity(
        f"the host has no room for {what}: {lacking}",
        resource=lacking.resource,
        limit=lacking.limit,
        used=lacking.used,
        hint=_HINT,
    )
