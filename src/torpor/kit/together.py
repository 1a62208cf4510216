"""Work that is done side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from torpor.kit.shielded import wait_ended


async def together(*works: Coroutine[Any, Any, object]) -> None:
    """Run all of `works` to their ends, and raise what failed first in their order. None outlives the call.

    Cancelled, it cancels them and waits for their ends.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    finally:
        await wait_ended(*tasks)
    for task in tasks:
        task.result()
