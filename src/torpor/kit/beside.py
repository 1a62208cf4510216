"""Work that is done beside something else, for as long as that lasts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from torpor.kit.shielded import end_tasks


@asynccontextmanager
async def beside(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `works` while the block lasts; what is not done by its end is cancelled, and none outlives it.

    What a work raises is its own to deal with: it does not end the block.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        await end_tasks(*tasks)
