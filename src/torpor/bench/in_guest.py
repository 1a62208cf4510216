"""What a measure has a guest do: write memory on demand, and give signs of life."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from torpor.errors import CommandFailed, Failed, TorporError, Unsupported
from torpor.sdk import Sandbox

_FOLDER = "/tmp/torpor-bench"  # noqa: S108 - in the guest
_PATIENCE_S = 120.0

# Holds as many MiB as it is told and rewrites every page of them with bytes that were never there before.
WRITER = """
import os
BLOCK, held = 65536, bytearray()
while True:
    with open("in") as orders:
        order = orders.read()
    if not order.strip():
        continue
    wanted = int(order) << 20
    if len(held) != wanted:
        held = bytearray(wanted)
    block = os.urandom(BLOCK)
    for at in range(0, wanted, BLOCK):
        held[at : at + BLOCK] = block
    with open("out", "w") as answer:
        answer.write("written")
"""

# A sign of life every few milliseconds, until it is told to end.
TICKER = """
import os, time
while not os.path.exists("stop"):
    os.write(1, b".")
    time.sleep(0.005)
"""


class MemoryWriter:
    """A process in a guest that makes a known amount of its memory dirty. A copy of the sandbox has a copy of it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    @classmethod
    def begin(cls, sandbox: Sandbox) -> MemoryWriter:
        """Start it. Raises Unsupported where the guest has no Python."""
        if sandbox.exec("command -v python3").exit_code:
            raise Unsupported(
                f"the template {sandbox.template!r} has no python3, which writes the memory",
                hint="use `--template agent`",
            )
        sandbox.filesystem.write(f"{_FOLDER}/writer.py", WRITER)
        # The pipes are there when the command ends, though nobody may have opened them yet.
        sandbox.exec("mkfifo in out", cwd=_FOLDER, check=True)
        sandbox.exec("setsid python3 writer.py </dev/null >/dev/null 2>&1 &", cwd=_FOLDER, check=True)
        return cls(sandbox)

    def write(self, mib: int) -> None:
        """Make `mib` MiB dirty, the same pages as before if it is as much. Raises Failed if it cannot."""
        try:
            order = f"echo {mib} >in && cat out"
            said = self._sandbox.exec(order, cwd=_FOLDER, check=True, timeout_seconds=_PATIENCE_S).stdout
        except CommandFailed as error:
            raise Failed(f"the guest of {self._sandbox.id} did not write {mib} MiB: {error.message}") from error
        if said != "written":
            raise Failed(f"the guest of {self._sandbox.id} could not hold {mib} MiB")


class Ticks:
    """The moments at which signs of life of a guest arrived here."""

    def __init__(self) -> None:
        self._arrived: list[float] = []
        self._news = threading.Condition()
        self._over: TorporError | None = None
        self._ended = False

    def moment(self) -> float:
        """Return the present moment on their clock, in seconds."""
        return time.perf_counter()

    def note(self, _chunk: str | bytes) -> None:
        """Note that one arrived."""
        with self._news:
            self._arrived.append(self.moment())
            self._news.notify_all()

    def end(self, error: TorporError | None) -> None:
        """Note that none will follow, and why if that is a failure."""
        with self._news:
            self._over, self._ended = error, True
            self._news.notify_all()

    def wait_for(self, more: int) -> float:
        """Wait until so many more have arrived, and return the moment. Raises what ended them, or Failed."""
        with self._news:
            wanted = len(self._arrived) + more
            there = self._news.wait_for(lambda: self._ended or len(self._arrived) >= wanted, _PATIENCE_S)
            if self._over is not None:
                raise self._over
            if self._ended or not there:
                raise Failed("the guest gives no more signs of life")
            return self.moment()

    def longest_gap_ms(self, begin: float, end: float) -> float:
        """Return the longest time without one between two moments, in milliseconds."""
        with self._news:
            moments = [begin, *(moment for moment in self._arrived if begin < moment < end), end]
        return max(later - earlier for earlier, later in pairwise(moments)) * 1000


@contextmanager
def ticking(sandbox: Sandbox) -> Iterator[Ticks]:
    """Have a guest give signs of life while the block runs, as the output of one command."""
    ticks = Ticks()

    def follow() -> None:
        try:
            sandbox.exec(["python3", "-c", TICKER], cwd=_FOLDER, on_stdout=ticks.note)
            ticks.end(None)
        except TorporError as error:
            ticks.end(error)

    follower = threading.Thread(target=follow, name="torpor-bench-ticks")
    follower.start()
    try:
        yield ticks
    finally:
        try:
            sandbox.exec("touch stop", cwd=_FOLDER)
        finally:
            follower.join()
