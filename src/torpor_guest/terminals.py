"""A job's terminal: one pseudo-terminal that is its stdin, stdout, stderr and controlling terminal.

The agent holds both ends for as long as the job runs, so that the terminal is there even while no process has it open.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import termios
from contextlib import suppress
from typing import NamedTuple

from torpor_guest.accounts import Account
from torpor_guest.loop import Loop
from torpor_guest.pipes import InputPipe
from torpor_guest.refusal import no_room
from torpor_guest.requests import Request
from torpor_guest.spool import Spool
from torpor_guest.spooled import SpooledPipe

# What a terminal is called where its order says nothing.
KIND = b"xterm-256color"
_MOST_CELLS = 65535
# The kernel holds no more than about 70 KiB of what was written to a terminal and not read.
_MOST_HELD = 256 * 1024
_WINDOW = struct.Struct("HHHH")
_EOF_AT = termios.VEOF


class Size(NamedTuple):
    """A terminal's size in characters."""

    rows: int
    cols: int

    @classmethod
    def of(cls, request: Request) -> Size:
        """Read it from a request. Raises Refusal."""
        return cls(request.whole("rows", 1, _MOST_CELLS), request.whole("cols", 1, _MOST_CELLS))

    @classmethod
    def wanted(cls, request: Request) -> Size | None:
        """Return the size of the terminal that a command is to have, None if it is to have none. Raises Refusal."""
        given = request.optional_object("terminal")
        return None if given is None else cls.of(given)


class Terminal:
    """One pseudo-terminal. `child_end` is what its job gets as descriptors 0, 1 and 2. Raises Refusal for no room."""

    def __init__(self, size: Size) -> None:
        try:
            self.fd, self.child_end = os.openpty()
        except OSError as error:
            raise no_room(error) from error
        self.resize(size)

    def resize(self, size: Size) -> None:
        """Set its size; the kernel tells the programs in its foreground of it by SIGWINCH."""
        self.size = size
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, _WINDOW.pack(size.rows, size.cols, 0, 0))

    def give_to(self, account: Account) -> None:
        """Make it the user's, who may then open it by its name as well."""
        if os.geteuid() == 0:
            os.fchown(self.child_end, account.uid, -1)

    def signal(self, number: int) -> bool:
        """Send a signal to the processes in its foreground, as its keys do. Returns False if there are none."""
        try:
            os.killpg(os.tcgetpgrp(self.fd), number)
        except OSError:
            return False
        return True

    def end_of_file(self) -> bytes:
        """Return the character that whoever reads lines from it takes for the end of the input."""
        characters = termios.tcgetattr(self.child_end)[6]
        return bytes(characters[_EOF_AT])

    def close(self) -> None:
        """Close both ends: the kernel hangs the terminal up, and tells its session by SIGHUP."""
        os.close(self.child_end)
        os.close(self.fd)


def take_as_controlling() -> None:
    """Make descriptor 0 the controlling terminal; called in a job's process, which leads a session, before its exec."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class TerminalOutput(SpooledPipe):
    """What is written on a job's terminal. It owns the terminal, and closes it once the job has ended."""

    def __init__(self, loop: Loop, null: int, spool: Spool, terminal: Terminal, *, keeps_all: bool) -> None:
        super().__init__(loop, null, spool, keeps_all=keeps_all, ends=(terminal.fd, terminal.child_end))
        self._terminal = terminal

    def abandon(self) -> None:
        self._terminal.close()
        self._fd = -1
        self.done = True

    def begin(self) -> None:
        self._watch()

    def command_ended(self) -> None:
        """The job has ended, or its terminal is to be hung up: take what is still there, and close it."""
        if not self.done:
            self._drain(_MOST_HELD)

    def _read(self, size: int) -> bytes:
        try:
            return super()._read(size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b""  # it was hung up

    def _widen(self) -> None:
        """A terminal is as wide as it is."""

    def _finish(self) -> None:
        super()._finish()
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            self._terminal.close()
            self._fd = -1


class Silence(SpooledPipe):
    """The stderr of a job with a terminal: there is nothing on it, as the terminal has it all."""

    def __init__(self, loop: Loop, null: int) -> None:
        super().__init__(loop, null, Spool(0), keeps_all=False, ends=(-1, -1))
        self.done = True

    def abandon(self) -> None:
        """Nothing is open."""

    def begin(self) -> None:
        """Nothing comes."""


class TerminalInput(InputPipe):
    """What is typed on a job's terminal. The end of the input is the terminal's own character for it."""

    def __init__(self, loop: Loop, terminal: Terminal) -> None:
        # A descriptor of its own: the loop knows who waits for what by it.
        super().__init__(loop, ends=(terminal.child_end, os.dup(terminal.fd)))
        self._terminal = terminal

    def begin(self) -> None:
        """The job's end stays open here, and is the output's to close."""

    def abandon(self) -> None:
        self.close()

    def end(self) -> None:
        """Type the end of the input. The terminal goes on taking more."""
        if self._fd >= 0:
            with suppress(OSError):  # it has just been hung up
                self._pass(memoryview(self._terminal.end_of_file()), None, 0)
