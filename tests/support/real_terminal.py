"""A program on a real pseudo-terminal of this machine, and a person who types and looks."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

PATIENCE_S = 60.0
# Makes the terminal the controlling one, and becomes the program.
_TAKE = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"


class OnTerminal:
    """A program that runs on a terminal. `screen`: all it has shown since what was waited for last."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], rows: int, cols: int) -> None:
        self._fd, self._end = os.openpty()
        self.resize(rows, cols)
        self.screen = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE, *argv],
            stdin=self._end,
            stdout=self._end,
            stderr=self._end,
            env=env,
            start_new_session=True,
        )

    def settings(self) -> list[object]:
        """Return the terminal's settings, as its programs have set them."""
        return termios.tcgetattr(self._end)

    def resize(self, rows: int, cols: int) -> None:
        """Give the terminal another size, as a window does."""
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, keys: bytes) -> None:
        """Type."""
        os.write(self._fd, keys)

    def until(self, text: bytes) -> None:
        """Look until a text is shown."""
        ends_at = time.monotonic() + PATIENCE_S
        while text not in self.screen:
            assert time.monotonic() < ends_at, f"{text!r} was not shown, but {self.screen[-2000:]!r}"
            self._look(0.2)
        self.screen = self.screen.partition(text)[2]

    def wait(self) -> int:
        """Look on until the program has ended, and return its exit code."""
        ends_at = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < ends_at, f"it did not end, but showed {self.screen[-2000:]!r}"
            self._look(0.05)
        self._look(0)
        return self.process.returncode

    def _look(self, seconds: float) -> None:
        if select.select([self._fd], [], [], seconds)[0]:
            with suppress(OSError):
                self.screen += os.read(self._fd, 65536)

    def close(self) -> None:
        """End the program and the terminal."""
        self.process.kill()
        self.process.wait()
        os.close(self._end)
        os.close(self._fd)


@contextmanager
def on_terminal(argv: Sequence[str], env: Mapping[str, str], *, rows: int = 24, cols: int = 80) -> Iterator[OnTerminal]:
    """Run a program on a terminal while the block lasts."""
    terminal = OnTerminal(argv, env, rows, cols)
    try:
        yield terminal
    finally:
        terminal.close()
