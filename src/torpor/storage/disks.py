"""Copy-on-write disks: an overlay takes a guest's writes over an immutable image, so a new one costs almost nothing."""

from __future__ import annotations

from pathlib import Path

from torpor.kit.files import clone
from torpor.storage.jailed import WORK, Jailed
from torpor.storage.programs import use


async def make_overlay(image: Path, overlay: Path) -> None:
    """Make an empty qcow2 overlay as large as a raw image. The image is named again at every start of a machine.

    Raises Unsupported without qemu-img, Failed if it fails.
    """
    # -u: the image's name in the header is never followed, so it is not checked; the size has to be given then.
    size = str(image.stat().st_size)
    argv = ["qemu-img", "create", "-q", "-f", "qcow2", "-u", "-b", image.name, "-F", "raw", str(overlay), size]
    await use(argv, "qemu-utils", "the disk was not made")
    overlay.chmod(0o600)


async def grow(image: Path, into: Path, disk_gib: int) -> None:
    """Fill a folder with `root.img`: a copy of a raw image of a file system, larger.

    Raises Unsupported without resize2fs, Failed if it fails.
    """
    target = into / "root.img"
    clone(image, target)
    with target.open("r+b") as file:
        file.truncate(disk_gib * 1024**3)
    argv = ["resize2fs", "-f", f"{WORK}/{target.name}"]
    await Jailed(into).run(argv, "e2fsprogs", "the disk was not made larger")
