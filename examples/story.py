"""How the examples tell what they do: a line for each step with its time, and one clear line for an error."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from torpor import ExecResult, TorporError


class Words(list[str]):
    """What is said of a step when it has ended, and how long it took, in seconds."""

    elapsed_s: float = 0.0


@contextmanager
def timed(name: str) -> Iterator[Words]:
    """Print a step's name, and its time and result when it has ended."""
    words = Words()
    print(f"{name:<32}", end="", flush=True)
    began = time.monotonic()
    try:
        yield words
    except BaseException:
        print("failed")
        raise
    words.elapsed_s = time.monotonic() - began
    print(f"{words.elapsed_s:7.2f} s   {' '.join(words)}".rstrip())


def brief(result: ExecResult) -> str:
    """Say in a few words how a command ended: its code, and the last line it wrote."""
    said = (result.stdout or result.stderr).strip().splitlines()
    return f"exit {result.exit_code}" + (f": {said[-1]}" if said else "")


def mib(size: int) -> str:
    """Return a number of bytes as people read it."""
    return f"{size / 2**20:.1f} MiB"


def run(main: Callable[[], None]) -> NoReturn:
    """Run a program and end with its exit code. An error of Torpor's is one line, and what mends it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # asked to end, it clears up first
    try:
        main()
    except TorporError as error:
        sys.exit(f"\nerror: {error.message}" + (f". {error.hint}" if error.hint else ""))
    except KeyboardInterrupt:
        sys.exit("\ninterrupted")
    sys.exit(0)
