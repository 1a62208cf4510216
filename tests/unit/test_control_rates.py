"""How often somebody may do something."""

from __future__ import annotations

import pytest

from torpor.control.service.rates import Rates
from torpor.testing.clock import JumpClock


@pytest.fixture
def clock() -> JumpClock:
    return JumpClock()


async def test_so_many_are_granted_at_once_and_so_many_a_second_after_that(clock: JumpClock) -> None:
    rates = Rates(clock, per_second=2, burst=3)
    assert [rates.take("a") for _ in range(5)] == [0, 0, 0, 0.5, 0.5]
    await clock.jump(0.5)
    assert [rates.take("a") for _ in range(2)] == [0, 0.5]
    await clock.jump(1000)
    assert sum(not rates.take("a") for _ in range(10)) == 3


def test_each_has_its_own(clock: JumpClock) -> None:
    rates = Rates(clock, per_second=1, burst=1)
    assert [rates.take(name) for name in "aabb"] == [0, 1, 0, 1]


def test_no_rate_is_no_limit(clock: JumpClock) -> None:
    rates = Rates(clock, per_second=0, burst=0)
    assert [rates.take("a") for _ in range(1000)] == [0] * 1000
    assert rates.wait_s("a") == 0


def test_to_ask_how_long_takes_nothing(clock: JumpClock) -> None:
    rates = Rates(clock, per_second=1, burst=1)
    assert rates.wait_s("a") == 0
    assert rates.take("a") == 0
    assert [rates.wait_s("a"), rates.wait_s("a")] == [1, 1]


def test_the_table_is_bounded_and_forgets_who_asked_longest_ago(clock: JumpClock) -> None:
    rates = Rates(clock, per_second=1, burst=1, most=2)
    for name in "aba":
        rates.take(name)
    rates.take("c")  # b is the oldest now
    assert rates.take("a") == 1
    assert len(rates._buckets) == 2
    assert rates.take("b") == 0
