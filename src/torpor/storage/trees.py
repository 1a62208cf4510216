"""Root file systems of strangers: a tree from an archive or an image, and a disk image from the tree."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torpor.errors import Failed, InvalidRequest
from torpor.storage import sift
from torpor.storage.jailed import OWNERS, WORK, Jailed, interpreter
from torpor.storage.programs import require
from torpor.storage.room import GIB, MIB
from torpor.storage.rootfs import make_ext4
from torpor.wire.builds import USUAL_DISK_GB

# Where the guest's first program mounts things, or writes: these are folders whatever an image has there.
_PLACES = {"proc": 0o555, "sys": 0o555, "dev": 0o755, "run": 0o755, "tmp": 0o1777, "etc": 0o755}
_MOST_ENTRIES = 2_000_000
# One entry of a tree takes an inode; the file system itself, and what is written later, some room.
_INODE_BYTES, _BESIDE, _SHARE = 256, 96 * MIB, 8
LARGEST_GIB = 64
LARGEST_BYTES = LARGEST_GIB * GIB


@dataclass(frozen=True, slots=True)
class Sifted:
    """What was found in an archive or image: its settings, as JSON has them, and how many devices were left out."""

    settings: dict[str, Any]
    left_out: int


async def unpack(how: str, source: str, jailed: Jailed, most: int, log: Path) -> Sifted:
    """Check what is at `source` in the jail (`how`: "layers" or "rootfs"), and unpack it to `tree` in the work folder.

    `most`: so many bytes its files may have. Raises InvalidRequest for what may not be in it, Unsupported where a
    program is missing, Failed.
    """
    require("zstd", "zstd")
    program = Jailed(jailed.work, {**jailed.seen, "/sift.py": Path(sift.__file__)})
    words = [interpreter(), "-I", "/sift.py", how, source, f"{WORK}/sifted", str(most), str(_MOST_ENTRIES)]
    try:
        await program.run(words, "bubblewrap", "the image cannot be used", log)
    except Failed as error:
        raise InvalidRequest(error.message) from error
    found = json.loads((jailed.work / "sifted" / "found.json").read_bytes())
    argv = ["umoci", "raw", "unpack", "--image", f"{WORK}/sifted:image", f"{WORK}/tree"]
    try:
        await Jailed(jailed.work, rights=OWNERS).run(argv, "umoci", "the image cannot be unpacked", log)
    except Failed as error:
        raise InvalidRequest(error.message) from error
    shutil.rmtree(jailed.work / "sifted")
    return Sifted(found["settings"], found["left_out"])


async def sift_archive(archive: Path, work: Path, log: Path) -> Path:
    """Check an archive, and return it written anew, below the folder `work`. Raises InvalidRequest, Failed."""
    jail = Jailed(work, {"/archive": archive, "/sift.py": Path(sift.__file__)})
    words = [interpreter(), "-I", "/sift.py", "rootfs", "/archive", f"{WORK}/sifted"]
    try:
        await jail.run([*words, str(USUAL_DISK_GB * GIB), str(_MOST_ENTRIES)], "bubblewrap", "it cannot be used", log)
    except Failed as error:
        raise InvalidRequest(error.message) from error
    blobs = sorted((work / "sifted" / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    return blobs[-1]


def make_places(tree: Path) -> None:
    """See to it that a tree has the folders that a guest's first program needs. Raises OSError."""
    for name, mode in _PLACES.items():
        path = tree / name
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            path.unlink()
        if not path.exists():
            path.mkdir()
            path.chmod(mode)


async def make_disk(tree: Path, image: Path, disk_gib: int | None, log: Path) -> int:
    """Make a disk image of a tree, of `disk_gib` or more, if its files need that, and return how many GiB it has.

    Raises InvalidRequest where it would be too large, Failed.
    """
    size, entries = await asyncio.to_thread(_measure, tree)
    needed = size + entries * _INODE_BYTES + size // _SHARE + _BESIDE
    chosen = max(disk_gib or USUAL_DISK_GB, -(-needed // GIB))
    if chosen > LARGEST_GIB:
        raise InvalidRequest(
            f"{size // MIB} MiB in {entries} files would need a disk of {chosen} GiB; {LARGEST_GIB} GiB is the most"
        )
    inodes = max(chosen * GIB // 16384, entries * 2)
    await make_ext4(tree, image, size_mib=chosen * 1024, inodes=inodes, jailed=image.parent, log=log)
    return chosen


def _measure(tree: Path) -> tuple[int, int]:
    """Return how many bytes the files of a tree take, in blocks, and how many entries it has; no link is followed."""
    size, entries, seen = 0, 0, set[int]()
    for status in _entries(tree):
        entries += 1
        if not stat.S_ISLNK(status.st_mode) and status.st_ino not in seen:
            size += -(-status.st_size // 4096) * 4096
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            seen.add(status.st_ino)
    return size, entries


def _entries(folder: Path) -> Iterator[os.stat_result]:
    waiting = [os.fspath(folder)]
    while waiting:
        with os.scandir(waiting.pop()) as found:
            for entry in found:
                yield entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
