"""Chores: what the server does to sandboxes of its own accord, while nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import StrEnum
from functools import partial
from typing import Any

import structlog

from torpor.errors import TorporError
from torpor.kit.shielded import end_tasks
from torpor.model.ids import SandboxId

_log = structlog.get_logger("torpor.control")


class Chore(StrEnum):
    """The kinds of chores. PATIENCE: waiting for the time at which a recovery is tried again. END: a life is over.

    WAKE: a port was asked for, and who asked may not wait until it is there.
    """

    RECOVERY = "recovery"
    CHECKPOINT = "checkpoint"
    SWEEP = "sweep"
    PATIENCE = "patience"
    END = "end"
    WAKE = "wake"


# How many of a kind have their turn at once; those that only wait are no burden.
AT_ONCE = {
    Chore.RECOVERY: 4,
    Chore.CHECKPOINT: 2,
    Chore.SWEEP: 4,
    Chore.PATIENCE: 100_000,
    Chore.END: 8,
    Chore.WAKE: 64,
}


class Chores:
    """Owns a task for each chore under way: one of a kind at a time for each sandbox, a few of a kind in all.

    What a chore raises is logged, and ends nothing but the chore: one sandbox's trouble must not end another's care.
    """

    def __init__(self) -> None:
        self._tasks: dict[tuple[Chore, SandboxId], asyncio.Task[None]] = {}
        self._turns = {chore: asyncio.Semaphore(count) for chore, count in AT_ONCE.items()}
        self._is_closed = False

    def begin(self, chore: Chore, sandbox_id: SandboxId, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin a chore; does nothing if that one is under way for the sandbox already, or all of it is closed."""
        if self._is_closed or self.is_under_way(chore, sandbox_id):
            return
        task = asyncio.create_task(self._run(chore, sandbox_id, work))
        self._tasks[chore, sandbox_id] = task
        task.add_done_callback(partial(self._forget, chore, sandbox_id))

    def is_under_way(self, chore: Chore, sandbox_id: SandboxId) -> bool:
        """Tell whether a chore is under way for a sandbox, or waits for its turn."""
        task = self._tasks.get((chore, sandbox_id))
        return task is not None and not task.done()

    def count(self, chore: Chore) -> int:
        """Return for how many sandboxes a chore is under way."""
        return sum(1 for kind, sandbox_id in self._tasks if kind is chore and self.is_under_way(kind, sandbox_id))

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
        await end_tasks(*self._tasks.values())

    def _forget(self, chore: Chore, sandbox_id: SandboxId, ended: asyncio.Task[None]) -> None:
        if self._tasks.get((chore, sandbox_id)) is ended:  # else the next one has begun
            del self._tasks[chore, sandbox_id]

    async def _run(self, chore: Chore, sandbox_id: SandboxId, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            async with self._turns[chore]:
                await work()
        except TorporError as error:
            _log.warning("chore failed", chore=chore.value, sandbox=sandbox_id, error=error.message)
        except Exception:
            _log.exception("chore failed unexpectedly", chore=chore.value, sandbox=sandbox_id)
