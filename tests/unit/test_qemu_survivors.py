"""Taking over a process that stands for a QEMU: whatever goes wrong, it lives on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stand_in import StandIn
from torpor.errors import Unavailable
from torpor.kit.procfs import mark_of
from torpor.kit.sockets import connect_to, listen_at
from torpor.vmm.driver import Place, Trace
from torpor.vmm.qemu.survivors import QemuSurvivors


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[StandIn]:
    machine = StandIn(tmp_path)
    yield machine
    machine.end()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "place").mkdir()
    return Place("sbx-x", tmp_path / "place")


def trace_of(machine: StandIn) -> Trace:
    mark = mark_of(machine.process.pid)
    assert mark is not None
    return Trace(mark, 1, 4096)


async def test_a_machine_that_greets_late_is_left_alone(machine: StandIn, place: Place) -> None:
    with listen_at(place.folder / "monitor.sock"), pytest.raises(Unavailable, match="no answer within"):
        await QemuSurvivors().adopt(place, trace_of(machine), within_s=0.05)
    assert machine.lives
    assert (place.folder / "monitor.sock").exists()


async def test_a_machine_that_cannot_be_spoken_to_is_left_alone(machine: StandIn, place: Place) -> None:
    with pytest.raises(Unavailable, match="did not answer"):
        await QemuSurvivors().adopt(place, trace_of(machine), within_s=10)
    assert machine.lives


async def test_one_whose_monitor_accepts_nobody_is_left_alone(machine: StandIn, place: Place) -> None:
    monitor = place.folder / "monitor.sock"
    with listen_at(monitor):
        with suppress(BlockingIOError):
            while True:
                connect_to(monitor).close()
        with pytest.raises(Unavailable, match="did not answer"):
            await QemuSurvivors().adopt(place, trace_of(machine), within_s=0.2)
    assert machine.lives


async def test_who_gives_up_taking_a_machine_over_does_not_end_it(machine: StandIn, place: Place) -> None:
    with listen_at(place.folder / "monitor.sock") as listener:
        listener.setblocking(False)
        adopting = asyncio.create_task(QemuSurvivors().adopt(place, trace_of(machine), within_s=10))
        line, _ = await asyncio.get_running_loop().sock_accept(listener)
        adopting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adopting
        line.close()
    assert machine.lives
