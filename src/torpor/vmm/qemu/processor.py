"""What this host's processor calls itself."""

from __future__ import annotations

import platform
import re
from pathlib import Path


def processor_name() -> str:
    """Return the model name that the kernel tells; the architecture where it tells none."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()
