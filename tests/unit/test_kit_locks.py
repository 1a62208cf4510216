from __future__ import annotations

import asyncio

import pytest

from torpor.kit.locks import KeyedLocks


async def test_a_key_is_held_by_one_at_a_time_in_the_order_of_asking() -> None:
    locks, order = KeyedLocks[str](), list[str]()

    async def work(name: str) -> None:
        async with locks.hold("key"):
            order.append(f"{name} begins")
            await asyncio.sleep(0)
            order.append(f"{name} ends")

    await asyncio.gather(work("first"), work("second"))
    assert order == ["first begins", "first ends", "second begins", "second ends"]


async def test_other_keys_are_not_held_up() -> None:
    locks = KeyedLocks[str]()
    async with locks.hold("one"), locks.hold("other"):
        assert "one" in locks
        assert "other" in locks


async def test_a_lock_that_nobody_wants_is_forgotten_also_after_an_error_or_a_cancelled_wait() -> None:
    locks = KeyedLocks[str]()
    with pytest.raises(ValueError, match="broken"):
        async with locks.hold("key"):
            raise ValueError("broken")

    async def wait() -> None:
        async with locks.hold("key"):
            raise AssertionError("it is held by the test")

    async with locks.hold("key"):
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert "key" in locks
    assert "key" not in locks
