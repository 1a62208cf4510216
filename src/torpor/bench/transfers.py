"""How fast files go in and out, and what that takes in memory; and what a server holds while nothing happens."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from torpor.bench.figures import Figure
from torpor.bench.processes import agent_mib, growth_of, resident_mib
from torpor.bench.subject import Subject
from torpor.errors import Failed
from torpor.kit.files import sha256_of

_MB = 1_000_000
_SIZE_MB = 100
_GUEST_PATH = "/var/tmp/blob"  # noqa: S108 - in the guest


def idle(subject: Subject, _rounds: int) -> Iterator[Figure]:
    """See what the server holds in memory."""
    local = subject.here()
    note = "" if local.fresh else "it ran before, and may have had work"
    yield Figure("server-idle", "resident memory of the idle server", "MiB", (resident_mib(local.pid),), note=note)


def files(subject: Subject, rounds: int) -> Iterator[Figure]:
    """Send a large file up and back, and see by how much every process on the way grew."""
    rates: dict[str, list[float]] = {"upload": [], "download": []}
    grown: dict[str, list[float]] = {}
    with subject.sandbox() as sandbox, tempfile.TemporaryDirectory(prefix="torpor-bench-") as folder:
        there, back = Path(folder) / "there", Path(folder) / "back"
        _fill(there)
        agent = agent_mib(sandbox)
        with growth_of(subject.pids(sandbox)) as growth:
            for _ in range(rounds):
                rates["upload"].append(_rate(lambda: sandbox.filesystem.upload(there, _GUEST_PATH)))
                rates["download"].append(_rate(lambda: sandbox.filesystem.download(_GUEST_PATH, back)))
        grown = {name: [mib] for name, mib in growth.items()} | {"agent": [agent_mib(sandbox) - agent]}
        if sha256_of(there) != sha256_of(back):
            raise Failed("the file that came back is not the one that was sent")
    for name, values in rates.items():
        yield Figure(name, f"{name}, {_SIZE_MB} MB", "MB/s", tuple(values))
    for name, values in grown.items():
        yield Figure(f"files-{name}", f"growth of the {name} during both", "MiB", tuple(values))


def _fill(path: Path) -> None:
    block = os.urandom(_MB)
    with path.open("wb") as file:
        for _ in range(_SIZE_MB):
            file.write(block)


def _rate(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return _SIZE_MB / (time.perf_counter() - started)
