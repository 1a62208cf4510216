"""What can be set on a host agent."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from torpor.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class HostConfig:
    """`home`: the data directory. `accelerator`: "auto" decides by booting a guest; "kvm" or "tcg" is taken as it is.

    `guest_timeout_s`: how long a restored guest may take for its first answer, in seconds. `spares`: whether a machine
    is prepared ahead for each template in use.
    """

    home: Path
    accelerator: str = "auto"
    guest_timeout_s: float = 20.0
    spares: bool = True

    @classmethod
    def from_environment(cls, home: Path) -> HostConfig:
        """Return the configuration for a data directory, with TORPOR_ACCELERATOR and TORPOR_SPARES (0 or 1)."""
        accelerator, spares = os.environ.get("TORPOR_ACCELERATOR", "auto"), os.environ.get("TORPOR_SPARES", "1")
        if accelerator not in {"auto", "kvm", "tcg"}:
            raise InvalidRequest(f"TORPOR_ACCELERATOR is {accelerator!r}; it can be auto, kvm or tcg")
        if spares not in {"0", "1"}:
            raise InvalidRequest(f"TORPOR_SPARES is {spares!r}; it can be 0 or 1")
        return cls(home, accelerator=accelerator, spares=spares == "1")
