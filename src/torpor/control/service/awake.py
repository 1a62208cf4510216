"""Awake: what uses a sandbox's guest finds it awake, and wakes it first where it sleeps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

from torpor.control.reconcile import reconcile_one
from torpor.control.service.passage import lost, refusal
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, in_use, noticing_loss, settled, show
from torpor.control.service.wake import wake
from torpor.errors import Busy, Conflict
from torpor.kit.shielded import shielded
from torpor.model.lifecycle import ANSWERING, SETTLED, State
from torpor.model.sandbox import Sandbox

# A sandbox may fall asleep again between being found awake and being used; more often than this is no accident.
_TRIES = 5

T = TypeVar("T")


async def awake(plane: Plane, owned: Owned) -> Sandbox:
    """Return a sandbox whose guest answers: one that sleeps is woken, one on its way somewhere is waited for.

    Many callers at once wake it once. Raises NotFound as `show`, SandboxLost for a failed one, Conflict for one that
    was paused or is being deleted, and what the host raises.
    """
    for _ in range(_TRIES):
        if (sandbox := await show(plane, owned)).state in ANSWERING:
            return sandbox
        sandbox = await settled(plane, owned)
        if sandbox.state is State.FAILED:
            raise lost(sandbox)
        if sandbox.state is State.PAUSED or sandbox.state not in SETTLED:
            raise refusal(sandbox, "this", frozenset({State.RUNNING}))
        if sandbox.state is State.HIBERNATED:
            await _woken(plane, owned)
    raise Busy(f"sandbox {owned.id} falls asleep again and again")


async def ask(
    plane: Plane, owned: Owned, call: Callable[[], Awaitable[T]], is_untouched: Callable[[], bool] = lambda: True
) -> T:
    """Return what a call to the guest of an awake sandbox returns. The sandbox counts as in use meanwhile.

    Where the host is Busy (it is freezing the guest, and did nothing), what to do is decided again, unless what the
    call was to send is touched already. Raises as `awake` and `noticing_loss` do, and what the call raises.
    """
    async with in_use(plane, owned):
        for left in reversed(range(_TRIES)):
            await awake(plane, owned)
            try:
                async with noticing_loss(plane, owned):
                    return await call()
            except Busy:
                if not left or not is_untouched():
                    raise
                await reconcile_one(plane, owned.id)
    raise AssertionError("the last try returns or raises")


@asynccontextmanager
async def reached(plane: Plane, owned: Owned, reach: Callable[[], AbstractAsyncContextManager[T]]) -> AsyncIterator[T]:
    """Use what `reach` opens in the guest of an awake sandbox while the block lasts. Raises as `ask` does."""

    @asynccontextmanager
    async def noticed() -> AsyncIterator[T]:
        async with noticing_loss(plane, owned), reach() as opened:
            yield opened

    async with in_use(plane, owned), AsyncExitStack() as stack:
        yield await ask(plane, owned, lambda: stack.enter_async_context(noticed()))


async def _woken(plane: Plane, owned: Owned) -> None:
    try:
        await shielded(wake(plane, owned))  # also for the others who wait for it
    except Conflict:
        if (await show(plane, owned)).state is State.HIBERNATED:
            raise
