"""Statistics of what was measured, and whether it reaches what it is to reach."""

from __future__ import annotations

import pytest

from torpor.bench.figures import Figure, Floor, Series, Target, percentile
from torpor.bench.in_guest import Ticks
from torpor.bench.life import burst_size
from torpor.bench.targets import TARGETS, targets_of
from torpor.errors import Failed, SandboxLost

MIB = 1024 * 1024


def figure(*values: float, floor: tuple[float, ...] | None = None) -> Figure:
    return Figure("wake", "wake", "ms", values, Floor("VMM alone", floor) if floor is not None else None)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ((7.0,), 50, 7.0),
        ((7.0,), 99, 7.0),
        ((3.0, 1.0, 2.0), 50, 2.0),
        ((4.0, 3.0, 2.0, 1.0), 50, 2.0),
        (tuple(float(number) for number in range(1, 101)), 90, 90.0),
        (tuple(float(number) for number in range(1, 101)), 99, 99.0),
        (tuple(float(number) for number in range(1, 102)), 99, 100.0),
    ],
)
def test_a_percentile_is_a_value_that_was_measured_by_nearest_rank(
    values: tuple[float, ...], share: int, expected: float
) -> None:
    assert percentile(values, share) == expected


def test_a_percentile_is_said_only_where_it_is_not_just_the_largest_value() -> None:
    few, some, many = figure(*range(9)), figure(*range(10)), figure(*range(100))
    assert (few.statistic("p50"), few.statistic("p90"), few.statistic("most")) == (4, None, 8)
    assert (some.statistic("p90"), some.statistic("p99")) == (8, None)
    assert many.statistic("p99") == 98


def test_a_ratio_compares_the_middle_of_both() -> None:
    assert figure(10.0, 30.0, 1000.0, floor=(20.0, 15.0, 1.0)).statistic("ratio") == 2.0


@pytest.mark.parametrize("floor", [None, (), (0.0,)])
def test_without_a_floor_there_is_no_ratio(floor: tuple[float, ...] | None) -> None:
    assert figure(10.0, floor=floor).statistic("ratio") is None


def test_a_target_is_met_at_its_limit_and_missed_beyond() -> None:
    at_most, at_least = Target("p50", 150), Target("p50", 40, at_least=True)
    assert [at_most.judge(figure(value)) for value in (149.0, 150.0, 150.1)] == [True, True, False]
    assert [at_least.judge(figure(value)) for value in (39.9, 40.0)] == [False, True]
    assert (str(at_most), str(at_least)) == ("p50 ≤ 150", "p50 ≥ 40")


def test_a_target_of_a_percentile_with_too_few_values_is_left_open() -> None:
    assert Target("p99", 250).judge(figure(*range(99))) is None
    assert Target("p99", 250).judge(figure(*range(100))) is True


def test_a_figure_without_an_aim_has_no_target() -> None:
    assert targets_of(Figure("delete", "delete", "ms", (1.0,))) == ()
    assert targets_of(figure(1.0)) == TARGETS["wake"]


def test_a_series_notes_what_ended_and_passes_on_what_it_returned_or_raised() -> None:
    series = Series()
    assert series.take(lambda: "made") == "made"
    with pytest.raises(ZeroDivisionError):
        series.take(lambda: 1 // 0)
    assert len(series) == 1
    assert series[0] >= 0
    assert series.figure("create", "create").values == tuple(series)


def test_a_burst_is_as_large_as_the_memory_allows() -> None:
    assert burst_size(64 * 1024 * MIB) == 50
    assert burst_size(3 * 1024 * MIB) == 10
    assert burst_size(0) == 1


def test_the_longest_gap_is_found_between_signs_of_life_and_at_the_edges() -> None:
    ticks = Ticks()
    begin = ticks.moment()
    for _ in range(3):
        ticks.note(b".")
    end = ticks.wait_for(0)
    assert 0 <= ticks.longest_gap_ms(begin, end) <= (end - begin) * 1000
    assert ticks.longest_gap_ms(end, end + 2) == pytest.approx(2000)


def test_who_waits_for_signs_of_life_hears_why_there_are_no_more() -> None:
    ticks = Ticks()
    ticks.end(SandboxLost("its machine ended"))
    with pytest.raises(SandboxLost):
        ticks.wait_for(1)
    over = Ticks()
    over.end(None)
    with pytest.raises(Failed, match="no more signs"):
        over.wait_for(1)
