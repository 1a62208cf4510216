"""What holds connections must not share them with the parent after a fork."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """Something with connections that it can open anew."""

    def _renew(self) -> None: ...


_alive: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_after_fork(holder: Renewable) -> None:
    """Have `holder` open its own connections in every forked child."""
    _alive.add(holder)


def _in_child() -> None:
    for holder in list(_alive):
        holder._renew()


os.register_at_fork(after_in_child=_in_child)
