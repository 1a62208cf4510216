"""What is summed from a ledger, and what it costs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.errors import InvalidRequest
from torpor.model.lifecycle import State
from torpor.model.usage import Interval, Prices, Usage, prices_from, summed, total

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def stay(state: State, began: float, ended: float, cpu: float = 0.0, **more: object) -> Interval:
    return Interval(state, at(began), at(ended), cpu_seconds=cpu, **more)  # type: ignore[arg-type]  # by name


def test_each_state_counts_as_what_it_is_paid_like() -> None:
    seconds = {state: 2.0**number for number, state in enumerate(State)}
    intervals = [stay(state, 1000, 1000 + length) for state, length in seconds.items()]
    used = summed(intervals, 1.0, at(9999))
    running = (State.RUNNING, State.SNAPSHOTTING, State.HIBERNATING, State.RESTORING)
    assert used.running_seconds == sum(seconds[state] for state in running)
    assert used.paused_seconds == seconds[State.PAUSED]
    assert used.hibernated_seconds == seconds[State.HIBERNATED] + seconds[State.WAKING]


def test_running_is_paid_and_the_rest_is_saved() -> None:
    intervals = [stay(State.RUNNING, 0, 10), stay(State.HIBERNATED, 10, 90), stay(State.PAUSED, 90, 100)]
    used = summed(intervals, Prices(vcpu_second=0.5, gib_second=2.0).rate(cpu=2, memory_mb=512), at(500))
    assert (used.cost, used.always_on_cost) == (20.0, 200.0)
    assert used.active_share == pytest.approx(0.1)
    assert used.saved_share == pytest.approx(0.9)


def test_of_nothing_nothing_is_saved() -> None:
    assert summed([], 1.0, NOON) == Usage()
    assert (Usage().active_share, Usage().saved_share) == (0.0, 0.0)


def test_what_is_open_runs_until_now_and_was_used_until_the_last_heartbeat() -> None:
    used = summed([stay(State.RUNNING, 0, 60, 30, is_open=True)], 1.0, at(100))
    assert (used.running_seconds, used.cpu_seconds) == (100.0, 30.0)
    later = summed([stay(State.RUNNING, 0, 60, 30, is_open=True)], 1.0, at(100), since=at(60))
    assert (later.running_seconds, later.cpu_seconds) == (40.0, 0.0)


def test_between_bounds_a_part_of_an_interval_counts_by_its_share() -> None:
    intervals = [stay(State.RUNNING, 0, 100, 50, resident_byte_seconds=1000), stay(State.PAUSED, 100, 200)]
    used = summed(intervals, 1.0, at(500), since=at(80), until=at(120))
    assert (used.running_seconds, used.paused_seconds) == (20.0, 20.0)
    assert used.cpu_seconds == pytest.approx(10)
    assert used.resident_byte_seconds == pytest.approx(200)


def test_the_disk_is_what_it_took_up_last() -> None:
    intervals = [stay(State.RUNNING, 0, 1, disk_bytes=5), stay(State.RUNNING, 1, 2, disk_bytes=3)]
    assert summed([*intervals, stay(State.FAILED, 2, 3)], 1.0, at(9)).disk_bytes == 3


def test_a_total_is_the_sum_of_its_parts() -> None:
    one = summed([stay(State.RUNNING, 0, 10, 4, disk_bytes=1)], 2.0, at(9))
    other = summed([stay(State.HIBERNATED, 0, 30, disk_bytes=2)], 1.0, at(9))
    assert total([one, other]) == Usage(10, 0, 30, 4, 0, 3, 20, 50)
    assert total([one, other]).active_share == 0.25


LEDGER = st.lists(
    st.tuples(st.sampled_from(list(State)), st.floats(0, 50) | st.just(0.0), st.floats(0, 9)), min_size=1, max_size=12
)


@given(stays=LEDGER, cuts=st.lists(st.floats(-10, 400), max_size=4), is_open=st.booleans())
def test_parts_of_a_time_add_up_to_the_whole(
    stays: list[tuple[State, float, float]], cuts: list[float], is_open: bool
) -> None:
    intervals, moment = [], 0.0
    for number, (state, length, cpu) in enumerate(stays):
        last = is_open and number == len(stays) - 1
        intervals.append(stay(state, moment, moment + length, cpu, is_open=last))
        moment += length
    now = at(moment + 7)
    bounds = [None, *(at(cut) for cut in sorted(cuts)), None]
    parts = [summed(intervals, 2.0, now, since, until) for since, until in pairwise(bounds)]
    whole, joined = summed(intervals, 2.0, now), total(parts)
    for figure in ("running_seconds", "paused_seconds", "hibernated_seconds", "cpu_seconds", "cost"):
        assert getattr(joined, figure) == pytest.approx(getattr(whole, figure), abs=1e-4)
    assert whole.cpu_seconds == pytest.approx(sum(cpu for _, _, cpu in stays))


def test_prices_are_the_usual_ones_unless_the_environment_names_others() -> None:
    assert prices_from({}) == Prices(0.000015, 0.0000045)
    assert prices_from({"TORPOR_PRICE_VCPU_SECOND": "0.25", "TORPOR_PRICE_GIB_SECOND": "0"}) == Prices(0.25, 0.0)


@pytest.mark.parametrize("text", ["cheap", "-1", "nan", "inf", "1,5"])
def test_a_price_that_is_none_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match=f"TORPOR_PRICE_GIB_SECOND .*{text!r}"):
        prices_from({"TORPOR_PRICE_GIB_SECOND": text})
