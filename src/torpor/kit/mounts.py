"""What is mounted below a folder."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_OCTAL = re.compile(rb"\\([0-7]{3})")

_libc = ctypes.CDLL(None, use_errno=True)


def mounted_below(folder: Path) -> list[bytes]:
    """Return the places below `folder`, or at it, where something is mounted, the innermost and newest first."""
    top = os.fsencode(folder.resolve())
    lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    places = [_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), line.split()[4]) for line in lines]
    return [place for place in reversed(places) if place == top or place.startswith(top + b"/")]


def unmount_below(folder: Path) -> None:
    """Unmount all of `mounted_below`, so that removing the folder cannot reach into it. Raises OSError."""
    for place in mounted_below(folder):
        if _libc.umount2(place, _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), os.fsdecode(place))
