"""Where things are in the data directory.

images/<kind>-<digest>/      immutable: kernel and initramfs, the guest agent's runtime disk, root disks
templates/<name>/            a template's snapshot: manifest.json, memory, state, disk.qcow2
sandboxes/<id>/              what a running sandbox writes: disk.qcow2, sockets, console.log, vmm.log
logs/                        logs of bakes
lock, bake.lock              held by the one server of this directory, and by a bake
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Layout:
    """The data directory's folders. All are readable by their owner only, as memory images hold users' secrets."""

    home: Path

    @property
    def images(self) -> Path:
        return self.home / "images"

    @property
    def templates(self) -> Path:
        return self.home / "templates"

    @property
    def sandboxes(self) -> Path:
        return self.home / "sandboxes"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def lock(self) -> Path:
        return self.home / "lock"

    @property
    def bake_lock(self) -> Path:
        return self.home / "bake.lock"

    def make(self) -> None:
        """Make the folders that are missing."""
        for folder in (self.home, self.images, self.templates, self.sandboxes, self.logs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
