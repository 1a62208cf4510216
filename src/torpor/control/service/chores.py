"""Chores: what the server does to sandboxes of its own accord, while nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any

import structlog

from torpor.errors import TorporError
from torpor.kit.shielded import wait_ended
from torpor.model.ids import SandboxId

_log = structlog.get_logger("torpor.control")


class Chore(StrEnum):
    """The kinds of chores."""

    RECOVERY = "recovery"
    CHECKPOINT = "checkpoint"
    SWEEP = "sweep"


_AT_ONCE = {Chore.RECOVERY: 4, Chore.CHECKPOINT: 2, Chore.SWEEP: 4}


class Chores:
    """Owns a task for each chore under way: one of a kind at a time for each sandbox, a few of a kind in all.

    What a chore raises is logged, and ends nothing but the chore: one sandbox's trouble must not end another's care.
    """

    def __init__(self) -> None:
        self._tasks: dict[tuple[Chore, SandboxId], asyncio.Task[None]] = {}
        self._turns = {chore: asyncio.Semaphore(count) for chore, count in _AT_ONCE.items()}
        self._is_closed = False

    def begin(self, chore: Chore, sandbox_id: SandboxId, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin a chore; does nothing if that one is under way for the sandbox already, or all of it is closed."""
        if self._is_closed or (chore, sandbox_id) in self._tasks:
            return
        task = asyncio.create_task(self._run(chore, sandbox_id, work))
        self._tasks[chore, sandbox_id] = task
        task.add_done_callback(lambda _: self._tasks.pop((chore, sandbox_id)))

    def is_under_way(self, chore: Chore, sandbox_id: SandboxId) -> bool:
        """Tell whether a chore is under way for a sandbox, or waits for its turn."""
        return (chore, sandbox_id) in self._tasks

    async def wait_over(self, chore: Chore, sandbox_id: SandboxId) -> bool:
        """Wait for the end of a chore if it is under way for a sandbox, and tell whether it was."""
        task = self._tasks.get((chore, sandbox_id))
        if task is None:
            return False
        await asyncio.wait([task])
        return True

    async def aclose(self) -> None:
        """Cancel what is under way, wait for its end, and begin nothing more."""
        self._is_closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        for task in tasks:
            await wait_ended(task)

    async def _run(self, chore: Chore, sandbox_id: SandboxId, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            async with self._turns[chore]:
                await work()
        except TorporError as error:
            _log.warning("chore failed", chore=chore.value, sandbox=sandbox_id, error=error.message)
        except Exception:
            _log.exception("chore failed unexpectedly", chore=chore.value, sandbox=sandbox_id)
