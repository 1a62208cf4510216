"""File systems with a lack of something, for tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def mounted(folder: Path, kind: str, options: str = "defaults") -> Iterator[Path | None]:
    """Mount a file system that lives in memory at the new folder `folder`; None for who may not mount one."""
    if os.geteuid() != 0:
        yield None
        return
    folder.mkdir()
    subprocess.run(["mount", "-t", kind, "-o", options, kind, str(folder)], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
