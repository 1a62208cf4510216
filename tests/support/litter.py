"""What a test run could leave behind on this machine, found by evidence."""

from __future__ import annotations

import os
from pathlib import Path

# In the environment of a run, and so in that of every process started from it, whoever its parent is by now.
RUN_VARIABLE = "TORPOR_TEST_RUN"
# Folders where programs of this project could leave named things, with what their names begin with.
SHARED_PLACES = {Path("/run"): "torpor", Path("/tmp"): "torpor", Path("/dev/shm"): "torpor"}
NAMESPACES = Path("/run/netns")
_MARK_DIGITS = 8


def processes_of(run: str, folder: Path) -> dict[int, str]:
    """Return the processes of a run, by id, with their commands: those that inherited its environment, and machines,
    which have none, with a file of its folder open.
    """
    mark = f"{RUN_VARIABLE}={run}".encode()
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0") or _is_machine_of(entry, folder):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(entry.name)] = command.decode(errors="replace")
            except OSError:
                continue  # it ended meanwhile, or is another user's
    return found


def _is_machine_of(process: Path, folder: Path) -> bool:
    if not (process / "comm").read_text().startswith("qemu-system"):
        return False
    return any(os.readlink(file).startswith(f"{folder}/") for file in (process / "fd").iterdir())


def control_groups_of(folder: Path) -> list[Path]:
    """Return the control groups that data directories in a run's folder have noted, and that are there still."""
    noted = [line for file in folder.glob("*/*/cgroups") for line in file.read_text().splitlines()]
    return sorted({Path(line) for line in noted if Path(line).is_dir()})


def mounts_below(folder: Path) -> list[str]:
    """Return the mount points in a folder."""
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [place for place in places if place.startswith(f"{folder}/")]


def shared_names() -> set[str]:
    """Return the named things in places that the whole machine shares."""
    return {
        str(entry)
        for place, beginning in SHARED_PLACES.items()
        if place.is_dir()
        for entry in place.iterdir()
        if entry.name.startswith(beginning)
    }


def namespace_mark(run: str) -> str:
    """Return how the names of the network namespaces of a run begin."""
    return f"trial-{run[:_MARK_DIGITS]}-"


def namespaces_of(run: str) -> list[Path]:
    """Return the network namespaces that a run has made by name.

    Slots of its servers are links of these, and are looked for where the servers end (see `outside_world`).
    """
    return sorted(NAMESPACES.glob(f"{namespace_mark(run)}*")) if NAMESPACES.is_dir() else []


def litter_of(run: str, folder: Path, shared_before: set[str]) -> list[str]:
    """Return a line for each thing a run has left: a process, a mount or temporary file of its folder, a name,
    a control group, a network namespace.
    """
    return [
        *(f"process {pid}: {command}" for pid, command in processes_of(run, folder).items()),
        *(f"mount {place}" for place in mounts_below(folder)),
        *(f"file {path}" for path in (folder / "tmp").iterdir()),
        *(f"name {name}" for name in sorted(shared_names() - shared_before)),
        *(f"control group {path}" for path in control_groups_of(folder)),
        *(f"network namespace {path.name}" for path in namespaces_of(run)),
    ]
