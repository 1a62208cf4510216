"""How much a host may promise: by what it has, by the control groups that it is in, or as it is set."""

from __future__ import annotations

from pathlib import Path

import pytest

from torpor.errors import InvalidRequest
from torpor.host.config import HostConfig
from torpor.host.limits import CapacityConfig, limits_for, memory_of_host
from torpor.model.capacity import GIB, MIB
from torpor.storage.layout import Layout
from torpor.storage.room import RESERVE, free_and_total


def host_with(folder: Path, memory_kib: int, groups: str = "", files: dict[str, str] | None = None) -> Path:
    """Make a root folder of a host that does not exist, and return it."""
    written = {"proc/meminfo": f"MemTotal:  {memory_kib} kB\n", "proc/self/cgroup": groups, **(files or {})}
    for name, text in written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


V1 = "sys/fs/cgroup/memory/memory.limit_in_bytes"


@pytest.mark.parametrize(
    ("groups", "files", "memory"),
    [
        ("", {}, 8 * GIB),
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/memory.max": "max\n"}, 8 * GIB),
        ("0::/a/b\n", {"sys/fs/cgroup/a/memory.max": f"{3 * GIB}\n"}, 3 * GIB),
        ("0::/\n", {"sys/fs/cgroup/memory.max": f"{2 * GIB}\n"}, 2 * GIB),
        ("4:memory:/job\n0::/\n", {V1: f"{1 << 63}\n"}, 8 * GIB),
        ("4:cpu,memory:/job\n", {V1.replace("memory/m", "memory/job/m"): f"{GIB}\n"}, GIB),
    ],
)
def test_the_narrowest_bound_counts(tmp_path: Path, groups: str, files: dict[str, str], memory: int) -> None:
    assert memory_of_host(host_with(tmp_path, 8 * 1024 * 1024, groups, files)) == memory


def test_a_host_that_does_not_tell_its_memory_bounds_none(tmp_path: Path) -> None:
    assert memory_of_host(tmp_path) is None
    assert limits_for(CapacityConfig(), Layout(tmp_path), tmp_path).memory_bytes is None


@pytest.mark.parametrize(("host_gib", "left_mib"), [(2, 512), (64, 6553)])
def test_a_part_of_the_memory_is_left_to_the_host(tmp_path: Path, host_gib: int, left_mib: int) -> None:
    root = host_with(tmp_path, host_gib * 1024 * 1024)
    promised = limits_for(CapacityConfig(), Layout(tmp_path), root).memory_bytes
    assert promised is not None
    assert (host_gib * GIB - promised) // MIB == left_mib


def test_disks_may_grow_to_a_multiple_of_what_they_are_on(tmp_path: Path) -> None:
    size = free_and_total(tmp_path)[1]
    config = CapacityConfig(disk_overcommit=3)
    assert limits_for(config, Layout(tmp_path)).disk_bytes == 3 * size
    assert limits_for(config, Layout(tmp_path, volume_limit=5 * GIB)).disk_bytes == 15 * GIB


def test_what_is_set_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORPOR_MEMORY_MIB", "4096")
    monkeypatch.setenv("TORPOR_MAX_MACHINES", "7")
    monkeypatch.setenv("TORPOR_DISK_OVERCOMMIT", "2")
    monkeypatch.setenv("TORPOR_DISK_RESERVE_MIB", "100")
    config = HostConfig.from_environment(tmp_path)
    limits = limits_for(config.capacity, Layout(tmp_path, volume_limit=GIB))
    assert (limits.memory_bytes, limits.machines, limits.disk_bytes) == (4 * GIB, 7, 2 * GIB)
    assert config.volume.reserve_mib == 100


def test_unset_there_is_a_bound_of_machines_and_a_reserve(tmp_path: Path) -> None:
    config = HostConfig.from_environment(tmp_path)
    assert config.capacity.machines == 500
    assert config.volume.reserve_mib * MIB == RESERVE


@pytest.mark.parametrize(
    "name", ["TORPOR_MEMORY_MIB", "TORPOR_MAX_MACHINES", "TORPOR_DISK_OVERCOMMIT", "TORPOR_DISK_RESERVE_MIB"]
)
@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "9" * 30, "\u0663"])
def test_what_is_no_number_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(InvalidRequest, match=f"{name} is .*; it is a whole number, 1 or more"):
        HostConfig.from_environment(tmp_path)
