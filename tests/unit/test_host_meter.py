"""What is counted of a machine, by a clock that jumps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from torpor.errors import Unsupported
from torpor.host.meter import Meter
from torpor.host.record import (
    RECORD,
    USAGE,
    Counted,
    MachineRecord,
    read_deadline,
    read_record,
    read_usage,
    write_deadline,
    write_record,
    write_usage,
)
from torpor.kit.procfs import ProcessMark
from torpor.model.ids import new_sandbox_id
from torpor.model.usage import Reading
from torpor.testing.fake_guest import FakeGuest
from torpor.vmm.driver import Place, Trace
from torpor.vmm.fake import FakeMachine

TRACE = Trace(ProcessMark(7, 1234, "boot"), 99, 4096)


@dataclass
class Watch:
    """A clock that is set by hand."""

    at: float = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
async def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(Place("place", tmp_path), FakeGuest(), TRACE, 4096, {})


async def test_memory_counts_from_one_look_to_the_next_and_before_the_first_as_it_is_found(
    machine: FakeMachine,
) -> None:
    watch = Watch()
    meter = Meter(machine, Reading(cpu_seconds=5, resident_byte_seconds=50), watch)
    watch.at += 2
    assert meter.reading(0).resident_byte_seconds == 50
    meter.take(100)
    assert meter.reading(0).resident_byte_seconds == 250
    watch.at += 3
    assert meter.reading(0).resident_byte_seconds == 550
    meter.take(1000)
    machine.cpu = 2.5
    watch.at += 1
    assert meter.reading(7) == Reading(7.5, 1550, 1000, 7)


async def test_a_machine_that_has_died_holds_nothing_and_what_it_used_stays(machine: FakeMachine) -> None:
    watch = Watch()
    meter = Meter(machine, Reading(), watch)
    machine.cpu = 3
    meter.take(100)
    meter.reading(0)
    watch.at += 1
    machine.die("it crashed")
    first = meter.reading(0)
    watch.at += 100
    assert meter.reading(0) == first == Reading(3, 100, 0, 0)


async def test_what_a_machine_had_used_before_it_was_the_sandbox_s_is_never_counted_below_nothing(
    machine: FakeMachine,
) -> None:
    machine.cpu = 3
    meter = Meter(machine, Reading(cpu_seconds=-3), Watch())
    machine.die("it crashed")
    assert meter.reading(0).cpu_seconds == 0
    late = Meter(machine, Reading(cpu_seconds=-3), Watch())  # it had died before anybody looked
    assert late.reading(0).cpu_seconds == 0
    assert late.counted().cpu_seconds == 0


async def test_what_was_noted_of_a_machine_that_dies_before_it_is_looked_at_stays(machine: FakeMachine) -> None:
    record = MachineRecord(new_sandbox_id(), TRACE, 80, began=1.0, counted=Reading(cpu_seconds=-3))
    machine.die("it crashed")
    meter = Meter.going_on(machine, record, Counted(2.0, 97.0, 5.0, 1))
    assert meter.reading(0).cpu_seconds == 97


@pytest.mark.parametrize(
    ("counted", "area"),
    [
        (Counted(900.0, 4, 500, held=10), 500),  # noted while this machine ran: the rest is counted by `held`
        (Counted(700.0, 4, 500, held=10), 50),  # noted while an earlier one did, and asleep since
        (None, 50),
    ],
)
async def test_a_meter_goes_on_where_it_was_noted(machine: FakeMachine, counted: Counted | None, area: float) -> None:
    record = MachineRecord(new_sandbox_id(), TRACE, 80, began=800.0, counted=Reading(1, 50))
    machine.cpu = 9
    meter = Meter.going_on(machine, record, counted)
    reading = meter.reading(0)
    assert reading.cpu_seconds == 10
    assert reading.resident_byte_seconds >= area
    assert reading.resident_byte_seconds > area or meter.counted().held is None


def test_what_is_noted_is_read_again(tmp_path: Path) -> None:
    record = MachineRecord(new_sandbox_id(), TRACE, 80, 12.5, Reading(1.5, 2.5))
    assert read_record(tmp_path) is None
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record
    assert read_usage(tmp_path) is None
    write_usage(tmp_path, Counted(1.0, 2.0, 3.0, None))
    assert read_usage(tmp_path) == Counted(1.0, 2.0, 3.0, None)
    for deadline in (1893456000.5, None):
        write_deadline(tmp_path, deadline)
        assert read_deadline(tmp_path) == deadline
    assert sorted(path.name for path in tmp_path.iterdir()) == [RECORD, USAGE]


def test_what_cannot_be_read_is_said_or_counts_as_nothing(tmp_path: Path) -> None:
    for name in (RECORD, USAGE, "deadline"):
        (tmp_path / name).write_bytes(b"\xff{")
    with pytest.raises(Unsupported, match="no record of format 1"):
        read_record(tmp_path)
    assert read_usage(tmp_path) is None
    assert read_deadline(tmp_path) is None


def test_a_record_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / RECORD).mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        read_record(tmp_path)
    assert read_record(tmp_path / "nowhere") is None
