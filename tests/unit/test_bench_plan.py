"""What one run measures, and how it goes on when a measure fails."""

from __future__ import annotations

import pytest

from torpor.bench.plan import MEASURES, plan
from torpor.errors import InvalidRequest


def test_without_a_word_everything_is_measured_and_quickly_less_often() -> None:
    whole, quick = plan(), plan(quick=True)
    assert list(whole.rounds) == list(quick.rounds) == list(MEASURES)
    assert all(quick.rounds[name] <= whole.rounds[name] for name in MEASURES)
    assert whole.rounds["create"] >= 100  # or its p99 could not be said


def test_only_some_are_measured_in_the_order_of_the_plan_and_as_often_as_is_said() -> None:
    assert dict(plan("wake, create", 7).rounds) == {"create": 7, "wake": 7}


@pytest.mark.parametrize("only", ["dance", "create,dance", "", " , "])
def test_a_measure_that_is_none_is_refused_with_those_there_are(only: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        plan(only)
    assert "create" in (refused.value.hint or "")
