"""`server.json`: how a running server on this machine is found, by clients and by `torpor down`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from torpor.kit.files import write_whole
from torpor.wire.home import SERVER_FILE


@dataclass(frozen=True, slots=True)
class Record:
    """A server that listens. `began` is its process's start time in clock ticks after boot: with the pid it names the
    process for good, where the pid alone may have gone to another. `stop_s`: how long it may take to put to sleep what
    runs when it is stopped, in seconds. `certificate`: the file with the certificate that it serves HTTPS with, if any.
    """

    url: str
    pid: int
    began: int
    stop_s: float
    certificate: str | None = None

    def is_alive(self) -> bool:
        """Tell whether that very process runs."""
        return began(self.pid) == self.began

    def write(self, home: Path) -> None:
        """Put the record where clients look, whole or not at all."""
        write_whole(home / SERVER_FILE, json.dumps(asdict(self)).encode() + b"\n")


def own(url: str, stop_s: float, certificate: Path | None = None) -> Record:
    """Return this process's record."""
    file = None if certificate is None else str(certificate)
    return Record(url, os.getpid(), began(os.getpid()) or 0, stop_s, file)


def read(home: Path) -> Record | None:
    """Return the record of the server that runs on `home`, or None: there is none, or its process is gone.

    Raises PermissionError if it may not be read.
    """
    try:
        said = json.loads((home / SERVER_FILE).read_text())
        record = Record(str(said["url"]), int(said["pid"]), int(said["began"]), float(said["stop_s"]))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
    return record if record.is_alive() else None


def began(pid: int) -> int | None:
    """Return the start time of a process in clock ticks after boot, or None if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The program's name stands in parentheses and may hold anything; field 3 follows the last one.
    state, *rest = stat[stat.rindex(")") + 2 :].split()
    return None if state in "ZX" else int(rest[18])
