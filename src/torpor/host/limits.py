"""What this host may promise to machines: as it is set, else by what it has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torpor.kit.environment import is_set, positive
from torpor.model.capacity import MIB, Limits
from torpor.storage.layout import Layout
from torpor.storage.room import free_and_total

# Of the host's memory, left to the server and the host: a tenth, and this at the least.
_LEAST_LEFT = 512 * MIB
_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class CapacityConfig:
    """`memory_mib`: how much of the host's memory machines may have together; None: nine tenths, with 512 MiB left.

    `machines`: how many there may be. `disk_overcommit`: how many times the file system's size their disks may grow to
    together, as few ever grow to the full.
    """

    memory_mib: int | None = None
    machines: int = 500
    disk_overcommit: int = 10

    @classmethod
    def from_environment(cls) -> CapacityConfig:
        """Return what TORPOR_MEMORY_MIB, TORPOR_MAX_MACHINES and TORPOR_DISK_OVERCOMMIT set. Raises InvalidRequest."""
        usual = cls()
        return cls(
            memory_mib=positive("TORPOR_MEMORY_MIB", 1) if is_set("TORPOR_MEMORY_MIB") else None,
            machines=positive("TORPOR_MAX_MACHINES", usual.machines),
            disk_overcommit=positive("TORPOR_DISK_OVERCOMMIT", usual.disk_overcommit),
        )


def limits_for(config: CapacityConfig, layout: Layout, root: Path = _ROOT) -> Limits:
    """Return how much may be promised to machines whose disks are in a data directory.

    `root`: where the host's /proc and /sys are found.
    """
    given = None if config.memory_mib is None else config.memory_mib * MIB
    size = layout.volume_limit if layout.volume_limit is not None else free_and_total(layout.data)[1]
    return Limits(
        machines=config.machines,
        memory_bytes=_share(memory_of_host(root)) if given is None else given,
        disk_bytes=size * config.disk_overcommit,
    )


def _share(memory: int | None) -> int | None:
    return None if memory is None else max(0, memory - max(memory // 10, _LEAST_LEFT))


def memory_of_host(root: Path = _ROOT) -> int | None:
    """Return how much memory, in bytes, the processes of this host can have: what it has, or what the control groups
    of this process leave of that. None where it is not told.
    """
    found = re.search(r"^MemTotal:\s*(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    bounds = [int(found[1]) * 1024] if found is not None else []
    return min([*bounds, *_group_bounds(root)], default=None)


def _group_bounds(root: Path) -> Iterator[int]:
    """Yield the memory bounds of this process's control groups and of those above it, of either version."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, inner = line.split(":", 2)
        if controllers == "":
            mounts, name = ["sys/fs/cgroup", "sys/fs/cgroup/unified"], "memory.max"
        elif "memory" in controllers.split(","):
            mounts, name = ["sys/fs/cgroup/memory"], "memory.limit_in_bytes"
        else:
            continue
        for mount in mounts:
            group = root / mount / inner.lstrip("/")
            while group.is_relative_to(root / mount):
                text = _read(group / name).strip()
                if text.isdecimal():  # not "max"
                    yield int(text)
                group = group.parent


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
