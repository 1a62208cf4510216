"""A file system whose files can share blocks, for tests: XFS in a sparse file, mounted for as long as it is needed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from torpor.kit.files import can_reflink

_BYTES = 320 << 20  # mkfs.xfs makes none under 300 MiB


@contextmanager
def reflink_volume(folder: Path) -> Iterator[Path]:
    """Yield a mounted, empty folder in `folder` where reflinks work; skip the test where none can be mounted."""
    if os.geteuid() != 0 or shutil.which("mkfs.xfs") is None:
        pytest.skip("only root can mount a file system, and mkfs.xfs makes it (package xfsprogs)")
    image, mounted = folder / "volume.xfs", folder / "volume"
    image.touch()
    os.truncate(image, _BYTES)
    mounted.mkdir()
    _run("mkfs.xfs", "-q", "-m", "reflink=1", str(image))
    try:
        _run("mount", "-t", "xfs", "-o", "loop", str(image), str(mounted))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no XFS can be mounted here: {error.stderr.decode(errors='replace').strip()}")
    try:
        assert can_reflink(mounted)
        yield mounted
    finally:
        _run("umount", str(mounted))
        image.unlink()


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)
