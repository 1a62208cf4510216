"""The few acts that differ between the async SDK and its generated sync twin, where `sync_` stands for `async_`."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from types import TracebackType
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
# The type of a call that answers later.
Answering = Coroutine[Any, Any, T]


async def async_sleep(seconds: float) -> None:
    """Wait, letting other tasks run."""
    await asyncio.sleep(seconds)


def sync_sleep(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)


async def async_offload(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do blocking work (local files) in a thread, so that the event loop runs on."""
    return await asyncio.to_thread(work, *args, **kwargs)


def sync_offload(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do blocking work here."""
    return work(*args, **kwargs)


async def async_deliver(callback: Callable[[Any], object], piece: str | bytes) -> None:
    """Hand a piece of output to a callback, which may be a plain function or a coroutine function."""
    outcome = callback(piece)
    if inspect.isawaitable(outcome):
        await outcome


def sync_deliver(callback: Callable[[Any], object], piece: str | bytes) -> None:
    """Hand a piece of output to a callback."""
    callback(piece)


class AsyncAside:
    """Work that goes on beside a block, in a task of its own. `end` has to be awaited."""

    def __init__(self, work: Callable[[AsyncAside], Coroutine[Any, Any, None]]) -> None:
        self._is_ending = asyncio.Event()
        self._task = asyncio.create_task(work(self))

    async def ends_within(self, seconds: float) -> bool:
        """Wait, for the work, and tell whether the block has ended meanwhile."""
        try:
            await asyncio.wait_for(self._is_ending.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def end(self) -> None:
        """Tell the work that the block has ended, and wait for it. Raises what it raised.

        Who is cancelled in this wait cancels the work, and is not kept longer than that takes.
        """
        self._is_ending.set()
        try:
            await asyncio.shield(self._task)
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait([self._task])
            raise


class SyncAside:
    """Work that goes on beside a block, in a thread of its own. `end` has to be called."""

    def __init__(self, work: Callable[[SyncAside], None]) -> None:
        self._work = work
        self._is_ending = threading.Event()
        self._failure: BaseException | None = None
        # A block that is never left must not keep its program from ending.
        self._thread = threading.Thread(target=self._run, name="torpor-thinking", daemon=True)
        self._thread.start()

    def ends_within(self, seconds: float) -> bool:
        """Wait, for the work, and tell whether the block has ended meanwhile."""
        return self._is_ending.wait(seconds)

    def end(self) -> None:
        """Tell the work that the block has ended, and wait for it. Raises what it raised."""
        self._is_ending.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._work(self)
        except BaseException as failure:
            self._failure = failure


class AsyncEntered(Protocol):
    """What `async with` needs."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


E_ = TypeVar("E_", bound=AsyncEntered)


class Entering(Coroutine[Any, Any, E_], Generic[E_]):
    """A call under way whose result is a context manager: await it, make it a task, or enter it with `async with`."""

    def __init__(self, call: Coroutine[Any, Any, E_]) -> None:
        self._call = call
        self._entered: E_

    def __await__(self) -> Generator[Any, Any, E_]:
        return self._call.__await__()

    def send(self, value: Any) -> Any:
        """Run the call up to its next wait."""
        return self._call.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error where the call waits."""
        return self._call.throw(*error)

    def close(self) -> None:
        """Give the call up."""
        self._call.close()

    async def __aenter__(self) -> E_:
        self._entered = await self._call
        return await self._entered.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._entered.__aexit__(kind, error, trace)


def async_enterable(call: Callable[P, Coroutine[Any, Any, E_]]) -> Callable[P, Entering[E_]]:
    """Let `async with f():` mean `async with await f():`."""

    @wraps(call)
    def begin(*args: P.args, **kwargs: P.kwargs) -> Entering[E_]:
        return Entering(call(*args, **kwargs))

    return begin


def sync_enterable(call: Callable[P, T]) -> Callable[P, T]:
    """Nothing has to be done: the result of a plain call can be entered as it is."""
    return call
