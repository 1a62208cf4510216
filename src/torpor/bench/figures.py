"""Figures: what was measured, its statistics, its floor, and what it is to reach."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

T = TypeVar("T")

# "ratio" is of the medians of a figure and its floor, "p99-ratio" of their 99th percentiles.
Statistic = Literal["p50", "p90", "p99", "most", "ratio", "p99-ratio"]

# So many values are needed before a percentile says more than their largest does.
_ENOUGH = {50: 1, 90: 10, 99: 100}


@dataclass(frozen=True, slots=True)
class Floor:
    """What stands beside a figure, in its unit and of the same run: the bare work, or the first of a row."""

    title: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured, with at least one value. `key` names it for programs and does not change.

    `at`: where it lies on a scale of sizes, such as the MiB that were written. `note`: what a reader has to know of it.
    """

    key: str
    title: str
    unit: str
    values: tuple[float, ...]
    floor: Floor | None = None
    at: float | None = None
    note: str = ""

    @property
    def n(self) -> int:
        """How many values there are."""
        return len(self.values)

    def statistic(self, name: Statistic) -> float | None:
        """Return one statistic of it; None if it has no floor, or too few values for that percentile."""
        if name == "most":
            return max(self.values)
        if name in ("ratio", "p99-ratio"):
            return self._ratio(50 if name == "ratio" else 99)
        share = int(name.removeprefix("p"))
        return percentile(self.values, share) if self.n >= _ENOUGH[share] else None

    def _ratio(self, share: int) -> float | None:
        floor = self.floor.values if self.floor else ()
        if min(self.n, len(floor)) < _ENOUGH[share]:
            return None
        beside = percentile(floor, share)
        return percentile(self.values, share) / beside if beside > 0 else None


@dataclass(frozen=True, slots=True)
class Target:
    """What one statistic of a figure is to reach: at most `limit`, or at least."""

    statistic: Statistic
    limit: float
    at_least: bool = False

    def judge(self, figure: Figure) -> bool | None:
        """Tell whether a figure reaches it; None if there are too few values to say."""
        value = figure.statistic(self.statistic)
        if value is None:
            return None
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{self.statistic} {'≥' if self.at_least else '≤'} {self.limit:g}"


def percentile(values: Sequence[float], share: int) -> float:
    """Return the smallest value that `share` percent of all do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered) / 100) - 1)]


class Series(list[float]):
    """Durations of one thing done again and again, in milliseconds."""

    def take(self, action: Callable[[], T]) -> T:
        """Do it once, note how long it took, and return its result. What raises is not noted."""
        started = time.perf_counter()
        result = action()
        self.append((time.perf_counter() - started) * 1000)
        return result

    def figure(self, key: str, title: str, floor: Floor | None = None, *, note: str = "") -> Figure:
        """Return it as a figure."""
        return Figure(key, title, "ms", tuple(self), floor, note=note)
