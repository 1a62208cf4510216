"""Where things are in the data directory.

In `home`:

images/<kind>-<digest>/      immutable: kernel and initramfs, the guest agent's runtime disk, root disks
volume.xfs, volume/          where home's file system has no reflinks: an image of one that has, and where it is mounted
volume.lock                  held while the volume is mounted, grown or unmounted
logs/                        logs of bakes
builds/<id>/                 what was sent for a build that has not run yet
lock, bake.lock              held by the one server of this directory, and by a bake
jail/<digest>/               what a machine in its jail sees of the system: QEMU, its libraries, its firmware
cgroups                      the folders below which control groups of machines were made, one a line
alive, keeper                locks by which the server and the keeper of this directory know of each other

In `data`, which is the volume or `home` itself, on one file system, so that files can be linked and share blocks:

templates/<name>/            a template: manifest.json, memory, state, disk.qcow2, checksums, memory.used
snapshots/<id>/              a snapshot: the same files
volumes/<id>.img             a named volume: a raw disk image
sandboxes/<id>/base/         links to the files of what a sandbox came from or was last frozen into
sandboxes/<id>/              what a running sandbox writes: disk.qcow2, volume0.img and so on, sockets, console.log,
                             vmm.log; and what is noted of it: machine.json, deadline, usage.json, asleep, paused,
                             volumes.json
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torpor.storage.room import RESERVE, VOLUME_RESERVE


@dataclass(frozen=True, slots=True)
class Layout:
    """The data directory's folders. All are readable by their owner only, as memory images hold users' secrets.

    `volume_limit`: with a volume, up to how many bytes it may grow. None: there is none, all is in `home`. `reserve`:
    so many bytes of the disk that `home` is on stay free.
    """

    home: Path
    volume_limit: int | None = None
    reserve: int = RESERVE

    @property
    def data(self) -> Path:
        """The folder of templates, snapshots and sandboxes: the volume, or `home` itself."""
        return self.home if self.volume_limit is None else self.volume_place

    @property
    def data_reserve(self) -> int:
        """How many bytes stay free on the file system of `data`."""
        return self.reserve if self.volume_limit is None else min(self.reserve, VOLUME_RESERVE)

    @property
    def images(self) -> Path:
        return self.home / "images"

    @property
    def templates(self) -> Path:
        return self.data / "templates"

    @property
    def snapshots(self) -> Path:
        return self.data / "snapshots"

    @property
    def sandboxes(self) -> Path:
        return self.data / "sandboxes"

    @property
    def named_volumes(self) -> Path:
        return self.data / "volumes"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def builds(self) -> Path:
        return self.home / "builds"

    @property
    def lock(self) -> Path:
        return self.home / "lock"

    @property
    def alive(self) -> Path:
        return self.home / "alive"

    @property
    def keeper(self) -> Path:
        return self.home / "keeper"

    @property
    def jail(self) -> Path:
        return self.home / "jail"

    @property
    def cgroups(self) -> Path:
        return self.home / "cgroups"

    @property
    def bake_lock(self) -> Path:
        return self.home / "bake.lock"

    @property
    def volume_image(self) -> Path:
        return self.home / "volume.xfs"

    @property
    def volume_place(self) -> Path:
        return self.home / "volume"

    @property
    def volume_lock(self) -> Path:
        return self.home / "volume.lock"

    def make(self) -> None:
        """Make the folders that are missing."""
        inner = (
            self.images,
            self.logs,
            self.builds,
            self.templates,
            self.snapshots,
            self.sandboxes,
            self.named_volumes,
        )
        for folder in (self.home, *inner):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
