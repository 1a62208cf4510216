"""How often somebody may do something: a bucket for each, which fills in time and is emptied by what is done."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torpor.kit.clock import Clock


@dataclass(slots=True)
class _Bucket:
    held: float
    at: float


class Rates:
    """Grants each key of a table `per_second` in the long run and `burst` at once; as often as it likes if that is 0.

    The table holds at most `most` keys: the one that asked longest ago is forgotten first, and so begins anew.
    """

    def __init__(self, clock: Clock, per_second: float, burst: float, most: int = 10_000) -> None:
        self._clock = clock
        self._per_second = per_second
        self._burst = burst
        self._most = most
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, key: str) -> float:
        """Take one, and return 0; or take none, and return in how many seconds there will be one."""
        if not self._per_second:
            return 0.0
        bucket = self._filled(key)
        if bucket.held >= 1.0:
            bucket.held -= 1.0
            return 0.0
        return (1.0 - bucket.held) / self._per_second

    def wait_s(self, key: str) -> float:
        """Return in how many seconds there will be one, 0 if there is one now. Takes none."""
        if not self._per_second or key not in self._buckets:
            return 0.0
        return max(0.0, (1.0 - self._filled(key).held) / self._per_second)

    def _filled(self, key: str) -> _Bucket:
        now = self._clock.monotonic()
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(self._burst, now)
            if len(self._buckets) > self._most:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        bucket.held = min(self._burst, bucket.held + (now - bucket.at) * self._per_second)
        bucket.at = now
        return bucket
