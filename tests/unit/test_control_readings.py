"""How readings go into a ledger: each second of a processor once, whatever a host says, and in which order."""

from __future__ import annotations

import pytest

from store_records import NOON
from torpor.control.store.contract import Boundary
from torpor.control.store.rules import extended, opened, turned
from torpor.model.lifecycle import State
from torpor.model.usage import Interval, Reading


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), float("-inf")])
def test_a_reading_of_less_than_nothing_counts_as_nothing(wrong: float) -> None:
    reading = Reading(cpu_seconds=wrong, resident_byte_seconds=wrong, disk_bytes=-1)
    entry = extended(opened(State.RUNNING, NOON), NOON, reading)
    assert entry.interval == Interval(State.RUNNING, NOON, NOON, is_open=True)
    later = extended(entry, NOON, Reading(cpu_seconds=2))
    assert later.interval.cpu_seconds == 2


@pytest.mark.parametrize("readings", [(2.0, 0.5, 2.1), (12.0, 8.0, 11.0), (1.0, 0.0, 1.0), (3.0, -5.0, 4.0)])
def test_nothing_is_ever_taken_back(readings: tuple[float, ...]) -> None:
    entry, before = opened(State.RUNNING, NOON), 0.0
    for reading in readings:
        entry = extended(entry, NOON, Reading(cpu_seconds=reading))
        assert entry.interval.cpu_seconds >= before
        before = entry.interval.cpu_seconds


def test_a_late_one_that_is_much_lower_is_not_taken_for_a_new_beginning() -> None:
    later = NOON.replace(hour=13)
    entry = extended(opened(State.RUNNING, NOON), later, Reading(cpu_seconds=2))
    late = extended(entry, NOON, Reading(cpu_seconds=0.5))
    assert late == entry
    assert extended(late, later, Reading(cpu_seconds=2.25)).interval.cpu_seconds == 2.25


def test_what_a_change_of_state_has_brought_is_counted_though_the_clock_was_set_back() -> None:
    later = NOON.replace(hour=13)
    entry = extended(opened(State.RUNNING, NOON), later, Reading(cpu_seconds=2))
    closed, following = turned(entry, State.PAUSED, NOON, Boundary("pause", Reading(cpu_seconds=5)))
    assert (closed.interval.cpu_seconds, closed.interval.ended_at) == (5, later)
    assert following is not None
    late = extended(following, NOON, Reading(cpu_seconds=2.1))  # a heartbeat that was asked for long before
    assert extended(late, later, Reading(cpu_seconds=6)).interval.cpu_seconds == 1
