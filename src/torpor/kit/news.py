"""A bell with any number of listeners, none of whom can miss a ring."""

from __future__ import annotations

import asyncio


class News:
    """Says that there is something new. A listener takes `coming` before it looks, and then waits for that."""

    def __init__(self) -> None:
        self._coming = asyncio.Event()

    @property
    def coming(self) -> asyncio.Event:
        """The next ring: an event that will be set by it, and stays set."""
        return self._coming

    def ring(self) -> None:
        """Say it to everybody who has taken `coming` since the last ring."""
        self._coming.set()
        self._coming = asyncio.Event()
