"""Looking again and again: what the server does of its own accord when it is due, or when a bell says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import structlog

from torpor.errors import TorporError
from torpor.kit.race import Overtaken, race

T = TypeVar("T")

_log = structlog.get_logger("torpor.control")


async def rounds(
    what: str,
    bell: asyncio.Event,
    look: Callable[[], Awaitable[T]],
    sleep: Callable[[T], Coroutine[Any, Any, None]],
    after_failure: Callable[[], T],
) -> None:
    """Look for `what` for ever: when the bell rings, or after what `look` returns, which `sleep` takes.

    A look that fails is logged, and done again after what `after_failure` returns. Ends by cancellation.
    """
    while True:
        bell.clear()
        try:
            until = await look()
        except TorporError as error:
            _log.warning(f"could not look for {what}", error=error.message)
            until = after_failure()
        await rung_or_slept(bell, sleep(until))


async def rung_or_slept(bell: asyncio.Event, sleep: Coroutine[Any, Any, None]) -> None:
    """Return when the bell rings or the sleep is over, whichever is first. The bell is quiet again after."""
    with suppress(Overtaken):
        await race(bell.wait(), sleep)
    bell.clear()
