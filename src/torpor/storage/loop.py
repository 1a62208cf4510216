"""A file system in a file: made, mounted through a loop device, grown while it is in use, unmounted. All of it blocks.

The programs are xfsprogs' and util-linux'; each step can be done again after a crash in the middle of it.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path

import structlog

from torpor.errors import Conflict, Failed, Unsupported
from torpor.kit.files import DRAFT_PREFIX, fsync_path
from torpor.kit.mounts import mount_at

_log = structlog.get_logger(__name__)

# Program -> Debian package.
PROGRAMS = {"mkfs.xfs": "xfsprogs", "xfs_growfs": "xfsprogs", "losetup": "mount", "mount": "mount", "umount": "mount"}
KIND = "xfs"

# What is deleted in it is given back to the file system that the image is on. A copy of a data directory may be mounted
# beside it, though both images have one UUID.
_OPTIONS = "discard,noatime,nodev,nosuid,noexec,nouuid"
_PATIENCE_S = 120.0


def lacking(has_program: Callable[[str], bool], root: Path = Path("/")) -> str:
    """Return why no image can be mounted on this host, empty if nothing is known to be missing."""
    missing = [name for name in PROGRAMS if not has_program(name)]
    if missing:
        return f"{missing[0]} is not installed (package {PROGRAMS[missing[0]]})"
    if not (root / "dev/loop-control").exists():
        return "this host has no loop devices"
    return ""


def make_image(image: Path, size: int) -> None:
    """Make a sparse image of `size` bytes with an empty file system that can share blocks. Appears whole."""
    draft = image.with_name(f"{DRAFT_PREFIX}{image.name}-{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as file:
            draft.chmod(0o600)
            file.truncate(size)
        # cowextsize: what is written over a clone takes up its own size, not 128 KiB for each scattered page.
        argv = ["mkfs.xfs", "-q", "-m", "reflink=1", "-d", "cowextsize=1", str(draft)]
        _use(argv, f"no file system was made in {image}")
        fsync_path(draft)
        draft.rename(image)
        fsync_path(image.parent)
    finally:
        draft.unlink(missing_ok=True)


def is_mounted(image: Path, place: Path) -> bool:
    """Tell whether an image is mounted at a place. Raises Conflict if something else is."""
    found = mount_at(place)
    if found is None:
        return False
    backing = Path(f"/sys/dev/block/{found.device}/loop/backing_file")
    try:
        # An image that was removed, or replaced, has another name there.
        if found.kind == KIND and Path(backing.read_text().rstrip("\n")).samefile(image):
            return True
    except OSError:
        pass  # it is no loop device, or its file is gone: not ours either way
    raise Conflict(f"something else than {image} is mounted at {place}", hint=f"unmount it: umount {place}")


def mount(image: Path, place: Path) -> None:
    """Mount an image. Raises Failed where it is damaged or the kernel cannot, Unsupported without the programs."""
    place.mkdir(mode=0o700, exist_ok=True)
    # A device that is there was left by somebody who was killed, or is held by a mount namespace that was made while
    # the image was mounted. It has to be the one: two would be two file systems that write over each other.
    device = _attached(image) or _attach(image)
    try:
        _mount(image, device, place)
    except Failed:
        if _attached(image):
            raise
        _mount(image, _attach(image), place)  # it went when its last holder did
    place.chmod(0o700)


def _mount(image: Path, device: str, place: Path) -> None:
    try:
        _use(
            ["mount", "-t", KIND, "-o", _OPTIONS, device, str(place)],
            f"{image} could not be mounted",
            hint=f"see the kernel's log (dmesg); if it is damaged, `xfs_repair {image}` mends it",
        )
    finally:
        # It goes as soon as nothing is mounted from it: at once, or when it is unmounted, by whoever does.
        if _attached(image):
            try:
                _use(["losetup", "--detach", device], f"the loop device {device} was not given back")
            except Failed as error:  # it is mounted all the same
                _log.warning(error.message)


def _attach(image: Path) -> str:
    # Without direct access every page would be in memory twice: as a page of the file system and as one of its image.
    argv = ["losetup", "--find", "--show", "--direct-io=on", str(image)]
    return _use(argv, f"no loop device could be made for {image}").strip()


def _attached(image: Path) -> str:
    """Return the loop device of an image, empty if there is none."""
    argv = ["losetup", "--associated", str(image), "--noheadings", "--output", "NAME"]
    return _use(argv, f"the loop devices of {image} are not told").strip().partition("\n")[0]


def grow(image: Path, place: Path, size: int) -> None:
    """Make a mounted image, and the file system in it, at least `size` bytes large, while it is in use."""
    if image.stat().st_size < size:
        os.truncate(image, size)
        fsync_path(image)
    device = _attached(image)
    _use(["losetup", "--set-capacity", device], f"the loop device {device} did not grow")
    _use(["xfs_growfs", "-d", str(place)], f"the file system at {place} did not grow")


def unmount(place: Path) -> None:
    """Unmount what is mounted at a place. Raises Failed while something of it is in use."""
    _use(["umount", str(place)], f"{place} could not be unmounted")


def _use(argv: list[str], failure: str, hint: str | None = None) -> str:
    """Run a program to its end and return what it printed. Raises Unsupported where it is missing, Failed."""
    try:
        ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    except FileNotFoundError as error:
        package = PROGRAMS.get(argv[0], "util-linux")
        raise Unsupported(f"the program {argv[0]} is not installed", hint=f"install the package {package}") from error
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{failure}: {argv[0]} does not end", hint=hint) from error
    if ended.returncode != 0:
        last_words = (ended.stderr.strip().splitlines() or [f"{argv[0]} ended with code {ended.returncode}"])[-1]
        raise Failed(f"{failure}: {last_words}", hint=hint)
    return ended.stdout
