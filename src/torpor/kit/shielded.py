"""Closing must end even if whoever closes is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def wait_ended(*tasks: asyncio.Task[Any]) -> None:
    """Return when all `tasks` have ended in any way; a caller cancelled meanwhile waits on and is cancelled after."""
    cancelled: asyncio.CancelledError | None = None
    while under_way := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(under_way)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel `tasks` and return when all have ended, as `wait_ended` does."""
    for task in tasks:
        task.cancel()
    await wait_ended(*tasks)


async def shielded(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end and return what it returns; a caller cancelled meanwhile is cancelled after it."""
    task = asyncio.create_task(work)
    try:
        await wait_ended(task)
    except asyncio.CancelledError as cancelled:
        # The cancellation is what the caller has to hear; what the work raised stands beside it.
        if not task.cancelled() and (error := task.exception()) is not None:
            raise cancelled from error
        raise
    return task.result()
