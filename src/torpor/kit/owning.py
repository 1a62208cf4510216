"""Several resources that close as one."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AsyncExitStack
from typing import Protocol, TypeVar


class Closable(Protocol):
    """Something that is closed once it is no longer needed.

    Closing again does nothing; cancellation does not cut it short.
    """

    async def aclose(self) -> None:
        """Close it."""


C = TypeVar("C", bound=Closable)


async def own(undo: AsyncExitStack, opening: Awaitable[C]) -> C:
    """Open something and have `undo` close it, before what was opened earlier."""
    opened = await opening
    undo.push_async_callback(opened.aclose)  # no await between the two lines: nothing can be lost here
    return opened
