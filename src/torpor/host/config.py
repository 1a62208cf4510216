"""What can be set on a host agent."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from torpor.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class HostConfig:
    """`home`: the data directory. `accelerator`: "auto" decides by booting a guest; "kvm" or "tcg" is taken as it is.

    `guest_timeout_s`: how long a restored guest may take for its first answer, in seconds. `spare_s`: how long after a
    create a machine that was prepared for the next one is kept, in seconds; 0 for none.
    """

    home: Path
    accelerator: str = "auto"
    guest_timeout_s: float = 20.0
    spare_s: float = 60.0

    @classmethod
    def from_environment(cls, home: Path) -> HostConfig:
        """Return the configuration for a data directory, with TORPOR_ACCELERATOR and TORPOR_SPARE_SECONDS."""
        accelerator, spare = os.environ.get("TORPOR_ACCELERATOR", "auto"), os.environ.get("TORPOR_SPARE_SECONDS", "60")
        if accelerator not in {"auto", "kvm", "tcg"}:
            raise InvalidRequest(f"TORPOR_ACCELERATOR is {accelerator!r}; it can be auto, kvm or tcg")
        if not spare.isdecimal():
            raise InvalidRequest(f"TORPOR_SPARE_SECONDS is {spare!r}; it is a number of seconds, 0 for no spares")
        return cls(home, accelerator=accelerator, spare_s=float(spare))
