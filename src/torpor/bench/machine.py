"""What the figures were made on."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from torpor.kit.files import can_reflink
from torpor.kit.mounts import mounts
from torpor.storage.layout import Layout

_GROUNDS = {
    "native": "files share blocks (reflink)",
    "volume": "a volume whose files share blocks (XFS)",
    "copies": "no reflinks: memory and disks are copied sparsely",
}


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that the server runs on. `file_system` is the data directory's; `ground` what its files stand on.

    `vmm`: what the guests are run by.
    """

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    file_system: str
    ground: str
    vmm: str

    @property
    def shares_blocks(self) -> bool:
        """Whether a copy of a file takes no room of its own."""
        return self.ground != "copies"

    @property
    def storage(self) -> str:
        """The file system and what is made of it, in words."""
        return f"{self.file_system}; {_GROUNDS[self.ground]}"


def layout_of(home: Path) -> Layout:
    """Return where things are in a data directory that a server runs on."""
    layout = Layout(home.resolve())
    # The limit matters to who lets the volume grow, and that is the server.
    return Layout(layout.home, 0) if layout.volume_image.exists() else layout


def describe(layout: Layout, vmm: str) -> Machine:
    """Describe this machine, and what a data directory on it stands on, where guests are run by `vmm`."""
    text = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return Machine(
        cpu=model[1].strip() if model else platform.machine(),
        cores=os.cpu_count() or 1,
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3, 1),
        kernel=platform.release(),
        python=platform.python_version(),
        file_system=file_system_of(layout.home),
        ground=_ground_of(layout),
        vmm=vmm,
    )


def _ground_of(layout: Layout) -> str:
    if layout.volume_limit is not None:
        return "volume"
    return "native" if can_reflink(layout.data) else "copies"


def file_system_of(folder: Path) -> str:
    """Return the kind of file system that a folder is on, such as `ext4`."""
    path = os.fsencode(folder.resolve())
    above = [mount for mount in mounts() if path == mount.place or path.startswith(mount.place.rstrip(b"/") + b"/")]
    # Of two at one place the newer one is seen.
    best = max(enumerate(above), key=lambda pair: (len(pair[1].place), pair[0]), default=None)
    return best[1].kind if best else "unknown"


def available_memory() -> int:
    """Return how much memory of this machine can still be used, in bytes; 0 if it does not tell."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def used_disk(folder: Path) -> int:
    """Return how many bytes of a folder's file system are in use, once all that was written is on the disk."""
    os.sync()
    status = os.statvfs(folder)
    return (status.f_blocks - status.f_bfree) * status.f_frsize
