"""Waiting for something that may be overtaken by something else."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Overtaken(Exception):
    """What was raced against was over first."""


async def race(work: Coroutine[Any, Any, T], end: Coroutine[Any, Any, object]) -> T:
    """Run `work` and return what it returns, unless `end` is over first. Neither outlives the call.

    Raises Overtaken if `end` was first, and what `work` raises.
    """
    doing, ending = asyncio.create_task(work), asyncio.create_task(end)
    try:
        await asyncio.wait({doing, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise Overtaken
        return doing.result()
    finally:
        doing.cancel()
        ending.cancel()
        await asyncio.gather(doing, ending, return_exceptions=True)
