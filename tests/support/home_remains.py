"""What there is of a data directory on this machine: processes, mounts, files."""

from __future__ import annotations

import json
from pathlib import Path

from guests import open_files
from torpor.storage.volume import use_volume


def processes_of(home: Path) -> list[str]:
    """Return the command lines of the processes that name something in a data directory, or, of VMMs, have something
    of it open; servers and the guards of jails left out.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                argv, name = (entry / "cmdline").read_bytes().split(b"\0"), (entry / "comm").read_text().strip()
            except OSError:
                continue
            named = name != "bwrap" and any(f"{home}/".encode() in word for word in argv)
            if named or (
                name.startswith("qemu-system") and any(f"{home}/" in file for file in open_files(int(entry.name)))
            ):
                found.append(b" ".join(argv).decode(errors="replace"))
    return found


def vmms_of(home: Path) -> list[str]:
    """Return the command lines of the VMMs among them."""
    return [command for command in processes_of(home) if "qemu-system-" in command]


def mounts_of(home: Path) -> list[str]:
    """Return what is mounted in a data directory, but for its volume."""
    volume = f" {home / 'volume'} "
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if f"{home}/" in line and volume not in line]


def remains_of(home: Path) -> list[str]:
    """Return the names of sandboxes' folders, and of drafts, in a data directory."""
    with use_volume(home) as layout:
        drafts = [*home.glob(".*"), *layout.snapshots.glob(".*"), *layout.templates.glob(".*")]
        return [path.name for path in [*layout.sandboxes.iterdir(), *drafts]]


def machine_of(sandboxes: Path, sandbox: str) -> int | None:
    """Return the process of a sandbox's machine, as its record has it; None where there is none."""
    try:
        pid: int = json.loads((sandboxes / sandbox / "machine.json").read_text())["pid"]
    except FileNotFoundError:
        return None
    return pid
