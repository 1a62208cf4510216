"""Once: what may come to be known several times is told one time."""

from __future__ import annotations

from collections import OrderedDict

_REMEMBERED = 4096


class Once:
    """Remembers the newest few thousand things that were told. It lives in memory: a new server may tell them again."""

    def __init__(self) -> None:
        self._told: OrderedDict[tuple[str, ...], None] = OrderedDict()

    def is_first(self, *what: str) -> bool:
        """Tell, the first time only, that something has not been told yet."""
        if what in self._told:
            return False
        self._told[what] = None
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        return True
