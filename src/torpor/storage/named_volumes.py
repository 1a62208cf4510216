"""Named volumes on disk: each a raw image with a file system in it, which only guests ever read.

The file of one that a sandbox writes to has a second name in the sandbox's folder. So whatever becomes of that folder,
the volume stays; and where a sandbox goes on from a copy, as after a hibernation, the copy becomes the volume by one
rename.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torpor.errors import Conflict, NotFound
from torpor.kit.files import DRAFT_PREFIX, allocated_bytes, clone, fsync_path, remove_tree
from torpor.kit.shielded import shielded
from torpor.model.ids import VolumeId, is_volume_id
from torpor.storage.layout import Layout
from torpor.storage.programs import use
from torpor.storage.room import MIB
from torpor.storage.volume import ensure_room

# What a new file system takes up at the most: its journal, and its tables of inodes, are written when they are used.
_ROOM_BYTES = 64 * MIB
_SUFFIX = ".img"


@dataclass(frozen=True, slots=True)
class VolumeFile:
    """A volume on this host: how large it is, and what it takes up on the disk, in bytes."""

    id: VolumeId
    size_bytes: int
    disk_bytes: int


class NamedVolumes:
    """The folder of volumes. All but `make` blocks, for some milliseconds where files can share blocks."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._folder = layout, layout.named_volumes
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._sizes = {each.id: each.size_bytes for each in self.all()}

    def path(self, volume: VolumeId) -> Path:
        """Return the file of a volume."""
        return self._folder / f"{volume}{_SUFFIX}"

    @property
    def promised_bytes(self) -> int:
        """To how many bytes all of them can grow together."""
        return sum(self._sizes.values())

    async def make(self, volume: VolumeId, size_mb: int) -> VolumeFile:
        """Make a volume with an empty file system in it. Raises Conflict, OutOfSpace, Unsupported, Failed."""
        ensure_room(self._layout, _ROOM_BYTES)
        if self.path(volume).exists():
            raise Conflict(f"there is a volume {volume} already")
        draft = self._draft(volume)
        try:
            await shielded(_make_file_system(draft, size_mb))
            await asyncio.to_thread(self._publish, volume, draft)
        finally:
            draft.unlink(missing_ok=True)
        return VolumeFile(volume, size_mb * MIB, allocated_bytes(self.path(volume)))

    def _publish(self, volume: VolumeId, draft: Path) -> None:
        fsync_path(draft)
        draft.replace(self.path(volume))
        fsync_path(self._folder)
        self._sizes[volume] = self.path(volume).stat().st_size

    def _draft(self, volume: VolumeId) -> Path:
        return self._folder / f"{DRAFT_PREFIX}{volume}-{secrets.token_hex(4)}"

    def all(self) -> list[VolumeFile]:
        """Return all there are, by id."""
        found = []
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            if is_volume_id(path.stem):
                status = path.stat()
                found.append(VolumeFile(VolumeId(path.stem), status.st_size, status.st_blocks * 512))
        return found

    def remove(self, volume: VolumeId) -> None:
        """Remove a volume; fine if there is none."""
        remove_tree(self.path(volume))
        self._sizes.pop(volume, None)

    def link(self, volume: VolumeId, target: Path) -> None:
        """Give a volume's file a second name. Raises NotFound if it is not there, OSError."""
        try:
            os.link(self.path(volume), target)
        except FileNotFoundError as error:
            raise self._missing(volume) from error

    def copy(self, volume: VolumeId, target: Path) -> None:
        """Make a copy of a volume's file. Raises NotFound if it is not there, OSError."""
        try:
            clone(self.path(volume), target)
        except FileNotFoundError as error:
            raise self._missing(volume) from error

    def put(self, files: Mapping[VolumeId, Path]) -> None:
        """Let files be volumes from now on, under both names: all or, where there is no room, none. Raises OSError."""
        others = {volume: file for volume, file in files.items() if not self._is(volume, file)}
        drafts = {volume: self._draft(volume) for volume in others}
        try:
            for volume, draft in drafts.items():
                os.link(others[volume], draft)
            for volume, draft in drafts.items():
                draft.replace(self.path(volume))
                self._sizes[volume] = self.path(volume).stat().st_size
        finally:
            for draft in drafts.values():
                draft.unlink(missing_ok=True)
        if drafts:
            fsync_path(self._folder)

    def _is(self, volume: VolumeId, file: Path) -> bool:
        return self.path(volume).exists() and self.path(volume).samefile(file)

    def _missing(self, volume: VolumeId) -> NotFound:
        return NotFound(
            f"the file of the volume {volume} is not on this host: {self.path(volume)}",
            hint="put it back there, or delete the volume and create it anew",
        )


async def _make_file_system(image: Path, size_mb: int) -> None:
    """Make a sparse image with an empty ext4, which has a journal: it may be cut off from its guest at any time."""
    argv = [
        *("mke2fs", "-q", "-t", "ext4", "-m", "0", "-e", "remount-ro"),
        *("-E", "root_owner=0:0,lazy_itable_init=1,lazy_journal_init=1", str(image), f"{size_mb}M"),
    ]
    await use(argv, "e2fsprogs", "the volume was not made")
    image.chmod(0o600)
