"""Locks by key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class KeyedLocks(Generic[K]):
    """One lock for each key, made when it is first wanted and forgotten when nobody holds it or waits for it."""

    def __init__(self) -> None:
        self._turns: dict[K, _Turn] = {}

    def __contains__(self, key: K) -> bool:
        """Tell whether somebody holds the key's lock or waits for it."""
        return key in self._turns

    @asynccontextmanager
    async def hold(self, key: K) -> AsyncIterator[None]:
        """Hold the key's lock while the block runs; whoever asked first has it first."""
        turn = self._turns.setdefault(key, _Turn())
        turn.wanted += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.wanted -= 1
            if turn.wanted == 0:
                del self._turns[key]


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    wanted: int = 0
