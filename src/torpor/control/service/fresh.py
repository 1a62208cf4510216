"""Keys that were made just now, so that an answer that was lost can be given again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from torpor.model.access import Key

# For how long a key is told a second time, to who asks with the same idempotency key, and how many of them.
_TOLD_FOR = timedelta(minutes=10)
_TOLD_AT_MOST = 1000


@dataclass(frozen=True, slots=True)
class Made:
    """A new key, and (`plain`) the key itself, which is kept nowhere."""

    key: Key
    plain: str = field(repr=False)


class Fresh:
    """The newest keys themselves, for some minutes, in memory only: an answer that was lost can be given again."""

    def __init__(self) -> None:
        self._plain: OrderedDict[str, tuple[datetime, str]] = OrderedDict()

    def put(self, made: Made) -> None:
        """Remember a key."""
        self.drop_before(made.key.created_at - _TOLD_FOR)
        self._plain[made.key.id] = (made.key.created_at, made.plain)
        if len(self._plain) > _TOLD_AT_MOST:
            self._plain.popitem(last=False)

    def get(self, key: Key, now: datetime) -> str | None:
        """Return a key itself, None if it is not remembered."""
        self.drop_before(now - _TOLD_FOR)
        return self._plain.get(key.id, (now, None))[1]

    def drop_before(self, moment: datetime) -> None:
        """Forget keys that were made before a moment."""
        for key_id in [key_id for key_id, (made_at, _) in self._plain.items() if made_at < moment]:
            del self._plain[key_id]
