"""Running the branches of an exploration side by side: `sync_` stands for `async_` in the generated twin.

The twin runs them in threads. A thread cannot be ended from outside, so what its branch works in is ended, and it with
that.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from torpor.kit.shielded import shielded, wait_ended

Job = Callable[[], Coroutine[Any, Any, None]]
SyncJob = Callable[[], None]


class Overran(Exception):
    """A function took longer than it may."""


async def async_called(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the user's, which may be a plain or a coroutine function, and return what it returns."""
    outcome = function(*args)
    return await outcome if inspect.isawaitable(outcome) else outcome


def sync_called(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the user's and return what it returns."""
    return function(*args)


async def async_within(seconds: float | None, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the user's for at most so long (None: no bound). Raises Overran."""
    try:
        async with asyncio.timeout(seconds) as bound:
            return await async_called(function, *args)
    except TimeoutError:
        if bound.expired():
            raise Overran from None
        raise


def sync_within(seconds: float | None, function: Callable[..., Any], *args: Any) -> Any:
    """Wait for a function of the user's for at most so long (None: no bound). Raises Overran; it may still run on."""
    ended: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            ended.put((function(*args), None))
        except BaseException as error:
            ended.put((None, error))

    # A function that hangs must not keep its program from ending.
    threading.Thread(target=run, name="torpor-branch-function", daemon=True).start()
    try:
        value, error = ended.get(timeout=seconds)
    except queue.Empty:
        raise Overran from None
    if error is not None:
        raise error
    return value


async def async_to_its_end(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `work`, which ends things, to its end; who is cancelled meanwhile is cancelled after it."""
    await shielded(work())


def sync_to_its_end(work: Callable[[], None]) -> None:
    """Run `work`, which ends things. A second Ctrl-C breaks it off."""
    work()


async def async_side_by_side(jobs: Sequence[Job], at_most: int, give_up: Job) -> None:
    """Run jobs side by side, at most so many at a time.

    If one fails, or the caller is cancelled, the others are cancelled, `give_up` is run, and once all have ended the
    first failure is raised.
    """
    limit = asyncio.Semaphore(at_most)

    async def limited(job: Job) -> None:
        async with limit:
            await job()

    tasks = [asyncio.create_task(limited(job)) for job in jobs]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in ended:
            task.result()
    except BaseException:
        for task in tasks:
            task.cancel()
        await shielded(give_up())
        await wait_ended(*tasks)
        for task in tasks:  # each has been heard of, or does not matter any more
            _ = task.cancelled() or task.exception()
        raise


def sync_side_by_side(jobs: Sequence[SyncJob], at_most: int, give_up: SyncJob) -> None:
    """Run jobs side by side in threads, at most so many at a time.

    If one fails, or the caller is interrupted, no other is begun, `give_up` is run, and once all have ended the first
    failure is raised.
    """
    waiting = deque(jobs)
    over: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def work() -> None:
        try:
            while True:
                try:
                    job = waiting.popleft()
                except IndexError:
                    break
                job()
        except BaseException as failure:
            over.put(failure)
        else:
            over.put(None)

    count = min(at_most, len(jobs))
    threads = [threading.Thread(target=work, name=f"torpor-branch-{n}", daemon=True) for n in range(count)]
    try:
        for thread in threads:
            thread.start()
        for _ in threads:
            _raise(over.get())
    except BaseException:
        waiting.clear()
        give_up()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        raise


def _raise(failure: BaseException | None) -> None:
    if failure is not None:
        raise failure
