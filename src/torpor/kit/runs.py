"""Ranges of bytes in a file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Offset and length, in bytes.
Run = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Written:
    """What was changed to bring a copy of a memory image up to date.

    `dirty_bytes`: pages that might have differed and were looked at. `runs`: what did differ, ascending, apart from
    each other; of these some were written and some, where only zeros were left, became holes. `used`: the pages that
    were in use at all, read or written: a hint for whoever brings the image to life.
    """

    dirty_bytes: int
    runs: tuple[Run, ...]
    used: tuple[Run, ...] = ()

    @property
    def written_bytes(self) -> int:
        """How many bytes of the image differed."""
        return sum(length for _, length in self.runs)


def merged(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Return the same bytes as runs that are ascending and apart: what touches or overlaps becomes one."""
    result: list[Run] = []
    for offset, length in sorted(run for run in runs if run[1] > 0):
        if result and offset <= sum(result[-1]):
            start, before = result[-1]
            result[-1] = (start, max(before, offset + length - start))
        else:
            result.append((offset, length))
    return tuple(result)
