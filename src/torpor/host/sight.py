"""What the doctor's checks are given, and what they return."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torpor.host.containment import ContainmentConfig
from torpor.network.config import NetworkConfig
from torpor.storage.volume import VolumeConfig

Verdict = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `mend` says what to do about it, and is empty where nothing has to be done.

    verdict: "ok"; "warn" (it works, with a limit that `says` names); "bad" (sandboxes will not run).
    """

    name: str
    verdict: Verdict
    says: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Sight:
    """Where to look. `search_path` is a PATH; system folders that a user's PATH leaves out are searched too.

    `volume`, `containment` and `network` return what is set about these, or raise InvalidRequest.
    """

    home: Path
    root: Path = Path("/")
    search_path: str = os.defpath
    is_root: bool = False
    volume: Callable[[], VolumeConfig] = VolumeConfig
    containment: Callable[[], ContainmentConfig] = ContainmentConfig
    network: Callable[[], NetworkConfig] = NetworkConfig

    def program(self, name: str) -> str | None:
        """Return where a program is, None if it is not installed."""
        folders = f"{self.search_path}:{self.root / 'usr/sbin'}:{self.root / 'sbin'}"
        return shutil.which(name, path=folders)

    def read(self, path: str) -> str:
        """Return the text of a file below the root; empty if it is not there."""
        try:
            return (self.root / path).read_text(errors="replace")
        except OSError:
            return ""
