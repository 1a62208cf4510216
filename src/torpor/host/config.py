"""What can be set on a host agent."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostConfig:
    """`home`: the data directory. `accelerator`: "auto" decides by booting a guest; "kvm" or "tcg" is taken as it is.

    `guest_timeout_s`: how long a restored guest may take for its first answer, in seconds.
    """

    home: Path
    accelerator: str = "auto"
    guest_timeout_s: float = 20.0

    @classmethod
    def from_environment(cls, home: Path) -> HostConfig:
        """Return the configuration for a data directory, with TORPOR_ACCELERATOR from the environment."""
        return cls(home, accelerator=os.environ.get("TORPOR_ACCELERATOR", "auto"))
