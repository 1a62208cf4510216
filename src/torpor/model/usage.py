"""What a sandbox uses, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from torpor.errors import InvalidRequest
from torpor.model.lifecycle import State

_GIB_IN_MIB = 1024


@dataclass(frozen=True, slots=True)
class Reading:
    """What a sandbox has used up to a moment, since it came to be on its host, over all its incarnations.

    `cpu_seconds`: processor time of its machines, from /proc. `resident_byte_seconds`: memory they held, times how
    long. The other two say how it is at that moment: `resident_bytes` of memory held, `disk_bytes` that its disk takes
    up.
    """

    cpu_seconds: float = 0.0
    resident_byte_seconds: float = 0.0
    resident_bytes: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Interval:
    """One stay of a sandbox in one state, from `began_at` to `ended_at`, and what it used meanwhile.

    Of an open one `ended_at` is the last heartbeat: what it used is known up to there, and it goes on after.
    `disk_bytes` is what its disk took up last (0: not known).
    """

    state: State
    began_at: datetime
    ended_at: datetime
    is_open: bool = False
    cpu_seconds: float = 0.0
    resident_byte_seconds: float = 0.0
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Prices:
    """What running costs for each second: of a vCPU, and of a GiB of memory that a sandbox has."""

    vcpu_second: float = 0.000015
    gib_second: float = 0.0000045

    def rate(self, cpu: int, memory_mb: int) -> float:
        """Return what a sandbox of a size costs for each second of running."""
        return cpu * self.vcpu_second + memory_mb / _GIB_IN_MIB * self.gib_second


VCPU_VARIABLE, GIB_VARIABLE = "TORPOR_PRICE_VCPU_SECOND", "TORPOR_PRICE_GIB_SECOND"


def prices_from(environment: Mapping[str, str]) -> Prices:
    """Return the prices that the environment names, else the usual ones. Raises InvalidRequest for one that is none."""
    usual = Prices()
    return Prices(
        _price(environment, VCPU_VARIABLE, usual.vcpu_second), _price(environment, GIB_VARIABLE, usual.gib_second)
    )


def _price(environment: Mapping[str, str], variable: str, usual: float) -> float:
    text = environment.get(variable, "")
    if not text:
        return usual
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not math.isfinite(price) or price < 0:
        raise InvalidRequest(f"{variable} has to be a number of at least 0, and it is {text!r}")
    return price


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used in some time: seconds in each class of states, what machines took, and what that costs.

    `cost` is the price of running; `always_on_cost` that of having run all the time.
    """

    running_seconds: float = 0.0
    paused_seconds: float = 0.0
    hibernated_seconds: float = 0.0
    cpu_seconds: float = 0.0
    resident_byte_seconds: float = 0.0
    disk_bytes: int = 0
    cost: float = 0.0
    always_on_cost: float = 0.0

    @property
    def active_share(self) -> float:
        """Running, as a part of all the time that counts; 0 of nothing."""
        counted = self.running_seconds + self.paused_seconds + self.hibernated_seconds
        return self.running_seconds / counted if counted else 0.0

    @property
    def saved_share(self) -> float:
        """What was not to be paid, as a part of `always_on_cost`; 0 of nothing."""
        return 1 - self.cost / self.always_on_cost if self.always_on_cost else 0.0


_RUNNING = frozenset({State.RUNNING, State.SNAPSHOTTING, State.HIBERNATING, State.RESTORING})
_HIBERNATED = frozenset({State.HIBERNATED, State.WAKING})


def summed(
    intervals: Iterable[Interval],
    rate: float,
    now: datetime,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Usage:
    """Return what one sandbox used between `since` and `until` (None: no bound), of what has happened by `now`.

    `rate` is what a second of its running costs. A passage counts as what it is paid like: running while it is frozen
    or put back, hibernated until it is awake. Creating, deleting and failed count as nothing. What was used in an
    interval of which only a part lies between the bounds counts by that part.
    """
    running = paused = hibernated = cpu = resident = 0.0
    disk = 0
    for interval in intervals:
        seconds, share = _clipped(interval, now, since, until)
        cpu += interval.cpu_seconds * share
        resident += interval.resident_byte_seconds * share
        disk = interval.disk_bytes or disk
        if interval.state in _RUNNING:
            running += seconds
        elif interval.state is State.PAUSED:
            paused += seconds
        elif interval.state in _HIBERNATED:
            hibernated += seconds
    always_on = rate * (running + paused + hibernated)
    return Usage(running, paused, hibernated, cpu, resident, disk, rate * running, always_on)


def total(usages: Iterable[Usage]) -> Usage:
    """Return the sum of what several sandboxes used."""
    each = list(usages)
    return Usage(
        running_seconds=math.fsum(one.running_seconds for one in each),
        paused_seconds=math.fsum(one.paused_seconds for one in each),
        hibernated_seconds=math.fsum(one.hibernated_seconds for one in each),
        cpu_seconds=math.fsum(one.cpu_seconds for one in each),
        resident_byte_seconds=math.fsum(one.resident_byte_seconds for one in each),
        disk_bytes=sum(one.disk_bytes for one in each),
        cost=math.fsum(one.cost for one in each),
        always_on_cost=math.fsum(one.always_on_cost for one in each),
    )


def _clipped(interval: Interval, now: datetime, since: datetime | None, until: datetime | None) -> tuple[float, float]:
    """Return how many seconds of an interval lie between the bounds, and which share of what is known of it does."""
    first = interval.began_at if since is None else max(since, interval.began_at)
    end = max(now, interval.ended_at) if interval.is_open else interval.ended_at
    last = end if until is None else min(until, end)
    seconds = max((last - first).total_seconds(), 0.0)
    known = (interval.ended_at - interval.began_at).total_seconds()
    if known:
        return seconds, max((min(last, interval.ended_at) - first).total_seconds(), 0.0) / known
    is_within = first == interval.began_at and (until is None or interval.began_at < until)
    return seconds, float(is_within)
