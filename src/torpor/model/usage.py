"""What a sandbox uses, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass


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
