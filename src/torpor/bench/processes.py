"""What processes of this machine hold in memory, and which of them run a sandbox."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torpor.kit.procfs import open_files
from torpor.sdk import Sandbox
from torpor.storage.layout import Layout
from torpor.vmm.qemu.survivors import QemuSurvivors

# Often enough to see a buffer that is held for some tens of milliseconds.
_LOOK_EVERY_S = 0.02
_AGENT_KIB = "sed -n 's/^VmHWM:[^0-9]*\\([0-9]*\\).*/\\1/p' /proc/1/status"


def machines_running(layout: Layout, sandbox_id: str) -> list[int]:
    """Return the ids of the processes that run a sandbox of this data directory.

    What a process has open tells, as its command line has the name that the sandbox's folder was made under.
    """
    part = f"/{sandbox_id}/"
    running = [process.pid for process in QemuSurvivors().below(layout.sandboxes)]
    return [pid for pid in running if any(part in path for path in open_files(pid))]


def resident_mib(pid: int) -> float:
    """Return a process's resident memory in MiB; 0 if it has ended."""
    return _kib_of(Path(f"/proc/{pid}/status"), ("VmRSS",)) / 1024


def own_memory_mib(pid: int) -> float:
    """Return the memory of a process that it shares with no other, in MiB; 0 if it has ended.

    Its own pages, written or not: also those of files that nobody else has mapped. Raises PermissionError.
    """
    return _kib_of(Path(f"/proc/{pid}/smaps_rollup"), ("Private_Clean", "Private_Dirty")) / 1024


def _kib_of(file: Path, names: tuple[str, ...]) -> int:
    try:
        lines = file.read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) for line in lines if line.partition(":")[0] in names)


def agent_mib(sandbox: Sandbox) -> float:
    """Return the largest resident memory of a sandbox's guest agent so far, in MiB."""
    return int(sandbox.exec(_AGENT_KIB, check=True).stdout) / 1024


@contextmanager
def growth_of(pids: Mapping[str, int]) -> Iterator[dict[str, float]]:
    """Watch processes during the block; after it the yielded mapping says by how many MiB each grew at its largest."""
    before = {name: resident_mib(pid) for name, pid in pids.items()}
    peak, done = dict(before), threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK_EVERY_S):
            for name, pid in pids.items():
                peak[name] = max(peak[name], resident_mib(pid))

    watcher = threading.Thread(target=watch, name="torpor-bench-growth")
    watcher.start()
    grown: dict[str, float] = {}
    try:
        yield grown
    finally:
        done.set()
        watcher.join()
        grown.update({name: peak[name] - before[name] for name in pids})
