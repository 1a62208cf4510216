"""A person's terminal, joined to one in a sandbox: keys in, screen out, size and exit code the same."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from torpor.cli import output
from torpor.errors import Conflict, OutcomeUnknown, TorporError, Unavailable

if TYPE_CHECKING:
    from torpor.sdk import Pty, Sandbox

# Once nobody is joined to it any more, a terminal is hung up after so long, in seconds: the way of one that was killed.
HANGUP_S = 60.0
_USUAL_SIZE = (24, 80)
_KEYS = 4096
# A server that restarts is asked again after so long, in seconds.
_AGAIN_S = 0.5
# Whoever leaves waits for so long for what was still to be shown, in seconds.
_LEAVE_S = 5.0
_END_OF_INPUT = b"\x04"
# How often it is said, in seconds: what was typed before a program set its terminal up may have been thrown away.
_TOLD_AGAIN_S = 2.0
_RESIZED, _ENDED = b"r", b"e"


def size_here() -> tuple[int, int]:
    """Return the rows and columns of the person's terminal; the usual ones where there is none."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            size = os.get_terminal_size(stream.fileno())
            if size.lines and size.columns:
                return size.lines, size.columns
    return _USUAL_SIZE


class Escapes:
    """Finds the way out in what is typed: `~.` at the beginning of a line. `~~` there is one `~`."""

    def __init__(self) -> None:
        self._at_start = True
        self._held = False
        self.has_left = False

    def feed(self, data: bytes) -> bytes:
        """Return what is to be passed on of what was typed. Once `has_left` is set, nothing more is."""
        passed = bytearray()
        for code in data:
            key = bytes((code,))
            if self._held:
                self._held = False
                if key == b".":
                    self.has_left = True
                    break
                passed += b"~" if key == b"~" else b"~" + key
            elif self._at_start and key == b"~":
                self._held = True
                continue
            else:
                passed += key
            self._at_start = key in (b"\r", b"\n")
        return bytes(passed)


def join(box: Sandbox, pty: Pty, *, with_stdin: bool = True) -> int:
    """Join the person's terminal to one in a sandbox until that ends, or the person leaves; return the exit code.

    The person's own terminal is as it was before, whatever happens. Where stdin is none, its bytes are typed, and then
    the end of the input. A restart of the server is waited out.
    """
    with _Joined(box, pty, sys.stdin.fileno() if with_stdin else None) as joined:
        return joined.run()


class _Joined:
    """Both ends, and the threads between them. What wakes the one that waits for keys is written to a pipe."""

    def __init__(self, box: Sandbox, pty: Pty, keys: int | None) -> None:
        self._box, self._pty, self._keys = box, pty, keys
        self._is_terminal = keys is not None and os.isatty(keys)
        self._bell, self._ring = os.pipe()
        self._failure: BaseException | None = None
        self._has_ended = threading.Event()
        self._escapes = Escapes()
        self._screen = threading.Thread(target=self._show, name="screen", daemon=True)

    def __enter__(self) -> _Joined:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._escapes.has_left or self._has_ended.is_set():
            self._screen.join(timeout=_LEAVE_S)
        self._has_ended.set()
        if not self._screen.is_alive():  # else it is let go of with the client, or this program
            os.close(self._bell)
            os.close(self._ring)

    def run(self) -> int:
        """Talk, and return the exit code."""
        with _raw(self._keys if self._is_terminal else None), self._heeding_signals():
            self._screen.start()
            threading.Thread(target=self._tell_of_sleep, name="sleep", daemon=True).start()
            self._pass_keys()
        if self._escapes.has_left:
            with contextlib.suppress(TorporError):  # its time will come by itself
                self._pty.kill(signal.SIGHUP)
            output.note("left; the terminal in the sandbox was hung up")
            return 0
        if self._failure is not None:
            raise self._failure
        return self._pty.exit_code or 0

    @contextlib.contextmanager
    def _heeding_signals(self) -> Iterator[None]:
        """Follow the terminal's size, and let what would end this program pass through what tidies up."""

        def resized(_: int, __: FrameType | None) -> None:
            os.write(self._ring, _RESIZED)

        def end(number: int, _: FrameType | None) -> None:
            raise SystemExit(128 + number)

        handlers = {signal.SIGWINCH: resized, signal.SIGTERM: end, signal.SIGHUP: end}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _show(self) -> None:
        try:
            for piece in self._pty:
                output.to_stdout(piece)
        except BaseException as error:
            self._failure = error
        finally:
            self._has_ended.set()
            os.write(self._ring, _ENDED)

    def _pass_keys(self) -> None:
        """Type what is typed here, until the terminal in the sandbox has ended or the person leaves."""
        has_ended = False  # what was piped in
        while not self._escapes.has_left:
            reading = [self._bell] if self._keys is None else [self._bell, self._keys]
            ready, _, _ = select.select(reading, [], [], _TOLD_AGAIN_S if has_ended else None)
            if not ready:
                self._type(_END_OF_INPUT)
            if self._bell in ready and self._heard_end():
                return
            if self._keys is not None and self._keys in ready:
                self._pass_some(self._keys)
                has_ended = self._keys is None and not self._is_terminal

    def _pass_some(self, source: int) -> None:
        keys = os.read(source, _KEYS)
        if not keys:  # the person's terminal is gone, or what was piped in has ended
            self._keys = None
        self._type(self._escapes.feed(keys) if self._is_terminal else keys or _END_OF_INPUT)

    def _heard_end(self) -> bool:
        news = os.read(self._bell, 64)
        if _RESIZED in news:
            self._resize()
        return _ENDED in news

    def _resize(self) -> None:
        with contextlib.suppress(TorporError):  # the next one will do, and one that has ended needs none
            self._pty.resize(*size_here())

    def _type(self, keys: bytes) -> None:
        while keys and not self._has_ended.is_set():
            try:
                self._pty.write(keys)
            except Conflict:  # it has just ended
                return
            except Unavailable:  # nothing was typed
                if self._has_ended.wait(_AGAIN_S):
                    return
                continue
            except OutcomeUnknown:
                self._say("the connection broke; what was typed last may be lost")
            return

    def _tell_of_sleep(self) -> None:
        """Say when the sandbox falls asleep and wakes."""
        try:
            last = None
            for event in self._box.events(types=["state"]):
                last = event
            if last is not None and last.data.get("to") == "hibernated":  # it was awake when this began
                self._say("asleep; a key wakes it")
            for event in self._box.events(None if last is None else last.cursor, types=["state"], follow=True):
                if self._has_ended.is_set():
                    return
                if event.data.get("to") == "hibernated":
                    self._say("asleep; a key wakes it")
                elif event.data.get("from") == "waking" and event.data.get("to") == "running":
                    self._say("awake")
        except Exception:
            # This is told beside the talk; what is wrong with the sandbox or the server is found out there.
            return

    def _say(self, text: str) -> None:
        if output.is_watched() and self._is_terminal:
            output.pass_through(sys.stderr.buffer, f"\r\n[{self._box.name or self._box.id}: {text}]\r\n".encode())


@contextlib.contextmanager
def _raw(terminal: int | None) -> Iterator[None]:
    """Have every key of a terminal passed on as it is while the block lasts, if there is one."""
    if terminal is None:
        yield
        return
    before = termios.tcgetattr(terminal)
    try:
        tty.setraw(terminal, termios.TCSADRAIN)
        yield
    finally:
        # A terminal that is gone has no settings to be put back.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
