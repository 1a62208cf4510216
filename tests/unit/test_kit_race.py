from __future__ import annotations

import asyncio

import pytest

from torpor.kit.race import Overtaken, race


async def never(ended: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(name)


async def at_once() -> int:
    return 42


async def test_work_that_is_first_gives_its_result_and_ends_the_other() -> None:
    ended: list[str] = []
    assert await race(at_once(), never(ended, "end")) == 42
    assert await race(at_once(), at_once()) == 42


async def test_work_that_is_overtaken_is_cancelled() -> None:
    ended: list[str] = []

    async def later() -> None:
        await asyncio.sleep(0)

    with pytest.raises(Overtaken):
        await race(never(ended, "work"), later())
    assert ended == ["work"]


async def test_what_the_work_raises_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await race(fail(), never([], "end"))


async def test_a_cancelled_race_leaves_neither_running() -> None:
    ended: list[str] = []
    racing = asyncio.create_task(race(never(ended, "work"), never(ended, "end")))
    for _ in range(3):
        await asyncio.sleep(0)
    racing.cancel()
    await asyncio.wait([racing])
    assert racing.cancelled()
    assert sorted(ended) == ["end", "work"]
