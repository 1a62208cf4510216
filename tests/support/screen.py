"""A program on a terminal of a given width, and what it writes there."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class Screen:
    """A program on a terminal, and what it has written there."""

    process: subprocess.Popen[bytes]
    master: int
    seen: str = ""

    def wait_for(self, text: str) -> None:
        """Read until it has written this."""
        while text not in self.seen:
            assert self._read(), f"it ended without {text!r}: {self.seen}"

    def wait(self) -> int:
        """Read to its end, and return its exit code."""
        while self._read():
            pass
        return self.process.wait()

    def lines(self) -> list[str]:
        """Return what was on a line at any time, without what a terminal obeys."""
        return [_CONTROL.sub("", line) for line in re.split(r"[\r\n]+", self.seen)]

    def _read(self) -> bool:
        try:
            data = os.read(self.master, 65536)
        except OSError:  # nobody has the other end any more
            return False
        self.seen += data.decode()
        return bool(data)


@contextmanager
def on_screen(command: Sequence[str], width: int = 80, more: Mapping[str, str] | None = None) -> Iterator[Screen]:
    """Run a program with its output on a terminal, stdin a pipe, and `more` in its environment."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    environment = os.environ | {"TERM": "xterm"} | dict(more or {})
    environment.pop("COLUMNS", None)
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=slave, stderr=slave) as process:
        os.close(slave)
        try:
            yield Screen(process, master)
        finally:
            process.kill()
            os.close(master)
