"""What is mounted below a folder."""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass
from pathlib import Path

_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_OCTAL = re.compile(rb"\\([0-7]{3})")

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Mount:
    """What is mounted at a place: the kind of its file system, and its device as the kernel numbers it (`7:0`)."""

    place: bytes
    kind: str
    device: str


def mounts() -> list[Mount]:
    """Return what is mounted in this mount namespace, in the order it was."""
    return [_parse(line) for line in Path("/proc/self/mountinfo").read_bytes().splitlines()]


def _parse(line: bytes) -> Mount:
    fields = line.split()
    place = _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), fields[4])
    return Mount(place, fields[fields.index(b"-") + 1].decode(), fields[2].decode())


def mount_at(place: Path) -> Mount | None:
    """Return what is mounted at a folder, the newest if there are several, None if nothing is."""
    wanted = os.fsencode(place.resolve())
    return next((mount for mount in reversed(mounts()) if mount.place == wanted), None)


def mounted_below(folder: Path) -> list[bytes]:
    """Return the places below `folder`, or at it, where something is mounted, the innermost and newest first."""
    top = os.fsencode(folder.resolve())
    places = [mount.place for mount in reversed(mounts())]
    return [place for place in places if place == top or place.startswith(top + b"/")]


def unmount_below(folder: Path) -> None:
    """Unmount all of `mounted_below`, so that removing the folder cannot reach into it. Raises OSError."""
    for place in mounted_below(folder):
        if _libc.umount2(place, _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), os.fsdecode(place))
