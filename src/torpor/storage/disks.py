"""Copy-on-write disks: an overlay takes a guest's writes over an immutable image, so a new disk costs almost
nothing.
"""

from __future__ import annotations

from pathlib import Path

from torpor.errors import Failed, Unsupported
from torpor.kit.proc import ProgramFailed, ProgramMissing, run


async def make_overlay(image: Path, overlay: Path) -> None:
    """Make an empty qcow2 overlay as large as a raw image. The image is named again at every start of a machine."""
    # -u: the image's name in the header is never followed, so it is not checked; the size has to be given then.
    size = str(image.stat().st_size)
    try:
        await run(["qemu-img", "create", "-q", "-f", "qcow2", "-u", "-b", image.name, "-F", "raw", str(overlay), size])
    except ProgramMissing as error:
        raise Unsupported(str(error), hint="install the package qemu-utils") from error
    except ProgramFailed as error:
        raise Failed(f"the disk was not made: {error}") from error
    overlay.chmod(0o600)
