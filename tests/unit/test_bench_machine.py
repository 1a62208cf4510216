"""What is seen of this machine and of processes on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stand_in import StandIn
from torpor.bench.floors import Floors
from torpor.bench.machine import available_memory, describe, file_system_of, layout_of, used_disk
from torpor.bench.processes import growth_of, machines_running, own_memory_mib, resident_mib
from torpor.storage.layout import Layout


def test_a_machine_is_described_by_what_the_kernel_says(tmp_path: Path) -> None:
    seen = describe(Layout(tmp_path), "qemu 10")
    assert seen.cores == os.cpu_count()
    assert seen.memory_gib > 0
    assert seen.file_system == file_system_of(tmp_path) != "unknown"
    assert seen.ground in ("native", "copies")
    assert seen.shares_blocks == (seen.ground == "native")
    assert list(tmp_path.iterdir()) == []


def test_the_file_system_of_a_folder_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    assert file_system_of(Path("/proc/self")) == "proc"
    assert file_system_of(Path("/")) != "proc"


def test_a_data_directory_with_a_volume_has_its_things_there(tmp_path: Path) -> None:
    assert layout_of(tmp_path).snapshots == tmp_path / "snapshots"
    (tmp_path / "volume.xfs").touch()
    assert layout_of(tmp_path).snapshots == tmp_path / "volume" / "snapshots"
    assert describe(layout_of(tmp_path), "qemu 10").ground == "volume"


def test_free_memory_and_used_disk_are_told_in_bytes(tmp_path: Path) -> None:
    assert available_memory() > 1024 * 1024
    assert used_disk(tmp_path) > 1024 * 1024


def test_the_memory_of_a_process_is_seen_and_of_one_that_ended_there_is_none() -> None:
    block = 64
    program = f"data = bytearray(b'x') * ({block} << 20); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert block < own_memory_mib(process.pid) < block + 64
        assert resident_mib(process.pid) > block
        process.communicate(b"\n")
        assert (own_memory_mib(process.pid), resident_mib(process.pid)) == (0, 0)


def test_growth_is_the_largest_during_the_block_though_it_was_given_back() -> None:
    mib = 96
    with growth_of({"client": os.getpid()}) as grown:
        held = bytearray(b"x") * (mib << 20)
        before = resident_mib(os.getpid())
        subprocess.run(["sleep", "0.2"], check=True)  # longer than the watcher's look
        del held
    assert before > mib
    assert grown["client"] == pytest.approx(mib, abs=mib / 2)


def test_the_machine_of_a_sandbox_is_found_by_what_it_has_open(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.make()
    place = layout.sandboxes / "spare-1"
    place.mkdir()
    (place / "disk.qcow2").touch()
    machine = StandIn(tmp_path, opens=[place / "disk.qcow2"])
    try:
        place.rename(layout.sandboxes / "sbx-1")
        assert machines_running(layout, "sbx-1") == [machine.process.pid]
        assert machines_running(layout, "spare-1") == []
    finally:
        machine.end()
    assert machines_running(layout, "sbx-1") == []


@pytest.mark.parametrize("count", [0, 1, 1024 * 1024, 3 * 1024 * 1024 + 7])
def test_a_plain_write_takes_time_and_leaves_nothing(tmp_path: Path, count: int) -> None:
    layout = Layout(tmp_path)
    layout.make()
    assert Floors(layout, "agent").write(count) > 0
    assert list(layout.snapshots.iterdir()) == []
