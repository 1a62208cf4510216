"""Run one step of the set-up: its output goes to build/setup.log, and the terminal shows how it gets on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOG = ROOT / "build" / "setup.log"
# Without a terminal (CI), a line about a long step is printed this often, in seconds.
REPORT_EVERY_S = 10.0
LINES_SHOWN_ON_FAILURE = 25


class SetupFailed(Exception):
    """The set-up cannot go on; the message says what to do."""


def say(text: str) -> None:
    """Print one line about the set-up."""
    print(f"setup: {text}", flush=True)


def run(title: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    """Run a program without input. Raises SetupFailed with the end of its output if it fails or cannot be started."""
    say(title)
    began = time.monotonic()
    LOG.parent.mkdir(parents=True, exist_ok=True)
    try:
        status, last_lines = _run_logged(argv, {**os.environ, **(env or {})})
    except OSError as error:
        raise SetupFailed(f"could not start {argv[0]}: {error.strerror}") from error
    if status != 0:
        shown = "\n".join(f"  | {line}" for line in last_lines)
        raise SetupFailed(f"`{' '.join(argv)}` failed with exit status {status} (all of it: {LOG}):\n{shown}")
    say(f"  took {time.monotonic() - began:.0f} s")


def _run_logged(argv: Sequence[str], env: Mapping[str, str]) -> tuple[int, Sequence[str]]:
    last_lines: deque[str] = deque(maxlen=LINES_SHOWN_ON_FAILURE)
    shown_at = time.monotonic()
    with (
        LOG.open("a") as log,
        subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as program,
    ):
        log.write(f"$ {' '.join(argv)}\n")
        assert program.stdout is not None
        for line in program.stdout:
            log.write(line)
            last_lines.append(line.rstrip())
            if sys.stdout.isatty():
                print(f"\r\x1b[K  {line.strip()[:100]}", end="", flush=True)
            elif time.monotonic() - shown_at > REPORT_EVERY_S:
                print(f"  ... {line.strip()[:110]}", flush=True)
                shown_at = time.monotonic()
    if sys.stdout.isatty():
        print("\r\x1b[K", end="", flush=True)
    return program.returncode, last_lines
