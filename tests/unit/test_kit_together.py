"""Work side by side: all of it ends, and the first failure is told."""

from __future__ import annotations

import asyncio

import pytest

from torpor.kit.together import together


async def test_all_run_to_their_ends_though_one_fails_and_the_failure_is_raised() -> None:
    ended: list[str] = []

    async def works() -> None:
        await asyncio.sleep(0)
        ended.append("works")

    async def fails() -> None:
        raise ValueError("it fails")

    with pytest.raises(ValueError, match="it fails"):
        await together(fails(), works())
    assert ended == ["works"]


async def test_whoever_is_cancelled_cancels_them_and_hears_of_it_when_they_have_ended() -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    async def waits() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.append("waits")

    running = asyncio.create_task(together(waits(), waits()))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["waits", "waits"]
