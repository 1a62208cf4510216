"""The data directory whose templates the tests share: baked once, kept from run to run."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from pathlib import Path

import pytest

from torpor.host.bake import BuildEvent, build_template

ROOT = Path(__file__).resolve().parents[2]
ALL = ("base", "code-interpreter")


def shared_home() -> Path:
    """Return where it is: TORPOR_TEST_HOME, or build/test-home."""
    return Path(os.environ.get("TORPOR_TEST_HOME") or ROOT / "build" / "test-home")


def bake(name: str) -> Path:
    """Bake a template in it, or find that it is up to date, and return the directory. Runs beside each other wait."""
    home = shared_home()
    home.parent.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch, home.with_name(f"{home.name}.lock").open("w") as turn:
        patch.setenv("TORPOR_VOLUME", "off")  # so that they can be copied without a mount
        fcntl.flock(turn, fcntl.LOCK_EX)
        asyncio.run(build_template(home, name, report=_tell))
    return home


def _tell(event: BuildEvent) -> None:
    if event.done:
        print(f"{event.step}: {event.detail} ({event.elapsed_s:.0f} s)", file=sys.stderr, flush=True)


if __name__ == "__main__":
    for template in ALL:
        print(f"the template {template} for the tests", file=sys.stderr, flush=True)
        bake(template)
