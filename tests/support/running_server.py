"""Runs `torpor serve` for tests: starts it, knows when it is ready, and ends it kindly or not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torpor import Client, Retry
from torpor.kit.files import clone
from torpor.storage.volume import VolumeConfig, use_volume

STOP_PATIENCE_S = 60
# The remembered verdict on KVM, which takes some seconds to reach.
ACCELERATOR = "accelerator.json"


@dataclass(frozen=True)
class RunningServer:
    """A `torpor serve` of this run."""

    process: subprocess.Popen[bytes]
    home: Path
    url: str
    key: str

    @property
    def data(self) -> Path:
        """Where its templates, snapshots and sandboxes are: a volume in its home, or the home itself."""
        volume = self.home / "volume"
        return volume if volume.is_mount() else self.home

    def client(self, *, request_timeout: float | None = None, retry: Retry | None = None) -> Client:
        """Return a new client of it; the caller closes it."""
        return Client(self.url, self.key, request_timeout, retry=retry)

    def kill(self) -> None:
        """End it without warning, as a crash does."""
        self.process.kill()
        self.process.wait(STOP_PATIENCE_S)

    def stop(self) -> int:
        """Ask it to end, wait until it has, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_PATIENCE_S)


@contextmanager
def serving(home: Path) -> Iterator[RunningServer]:
    """Run a server on a data directory and a free port. What it says goes to `server.log` beside the directory."""
    ready, told = os.pipe()
    argv = [sys.executable, "-m", "torpor.cli", "serve", "--home", str(home), "--port", "0", "--ready-fd", str(told)]
    log = home.parent / "server.log"
    with open(ready) as answer, log.open("a") as sink:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, pass_fds=[told])
        os.close(told)
        try:
            url = answer.read()  # ends without a word if the server ends without having listened
            assert url, f"the server did not start: {log.read_text()[-4000:]}"
            yield RunningServer(process, home, url, (home / "key").read_text().strip())
        finally:
            process.terminate()
            process.wait(STOP_PATIENCE_S)


def home_sharing_templates(
    template_home: Path, home: Path, config: VolumeConfig | None = None, *, names: Collection[str] = ("base",)
) -> Path:
    """Make a data directory with the images and a copy of the named templates of another, and return it."""
    home.mkdir(mode=0o700)
    for shared in ("images", "jail"):
        (home / shared).symlink_to(template_home / shared)
    if (template_home / ACCELERATOR).exists():
        shutil.copy(template_home / ACCELERATOR, home)
    with use_volume(home, config) as layout:
        for part in [part for name in names for part in (template_home / "templates" / name).iterdir()]:
            target = layout.templates / part.parent.name / part.name
            target.parent.mkdir(mode=0o700, exist_ok=True)
            clone(part, target)
            shutil.copystat(part, target)
    return home
