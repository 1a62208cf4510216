"""The clock that jumps, and the real one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from torpor.kit.clock import Clock, SystemClock
from torpor.testing.clock import JumpClock


async def test_sleepers_wake_in_the_order_of_their_moments_each_at_its_own() -> None:
    clock, woken = JumpClock(), list[tuple[str, float]]()

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as group:
        for name, seconds in (("late", 9.0), ("early", 1.0), ("middle", 5.0)):
            group.create_task(sleeper(name, seconds))
        await clock.wait_sleepers(3)
        await clock.jump(10)
    assert woken == [("early", 1.0), ("middle", 5.0), ("late", 9.0)]


async def test_a_sleeper_that_sleeps_again_is_woken_again_in_one_jump() -> None:
    clock, moments = JumpClock(), list[float]()

    async def ticking() -> None:
        for _ in range(4):
            await clock.sleep(2)
            moments.append(clock.monotonic())

    task = asyncio.create_task(ticking())
    await clock.jump(7)
    assert moments == [2, 4, 6]
    await clock.jump(1)
    await task


async def test_a_jump_ends_at_its_own_end() -> None:
    clock = JumpClock(datetime(2031, 5, 5, tzinfo=UTC))
    await clock.jump(90.5)
    assert clock.now() == datetime(2031, 5, 5, 0, 1, 30, 500_000, tzinfo=UTC)
    assert clock.monotonic() == 90.5


async def test_a_cancelled_sleeper_is_none() -> None:
    clock = JumpClock()
    task = asyncio.create_task(clock.sleep(5))
    await clock.wait_sleepers()
    task.cancel()
    await asyncio.wait([task])
    assert clock.sleepers() == 0
    await clock.jump(10)


async def test_sleeping_until_a_moment_that_has_passed_returns_at_once() -> None:
    clocks: list[Clock] = [JumpClock(), SystemClock()]
    for clock in clocks:
        await clock.sleep_until(clock.now() - timedelta(days=1))


async def test_the_system_clock_is_aware_and_reaches_its_moment() -> None:
    clock = SystemClock()
    moment = clock.now() + timedelta(milliseconds=20)
    await clock.sleep_until(moment)
    assert clock.now() >= moment
    assert clock.now().tzinfo is UTC
