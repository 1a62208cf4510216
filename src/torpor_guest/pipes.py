"""The ends of a command's pipes that the agent holds."""

from __future__ import annotations

import fcntl
import os
import sys
import termios
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from torpor_guest import protocol
from torpor_guest.connection import Stream
from torpor_guest.loop import IN, ONCE, OUT, Loop

_WIDE_PIPE = 256 * 1024
_DISCARD_SIZE = 1024 * 1024
_SPLICE_NONBLOCK = 2


class OutputPipe:
    """A command's stdout or stderr, as a source of one stream.

    It is read only as fast as the host takes it. Once the command has ended exactly what is in the pipe at that
    moment is delivered; what background children write later is read and thrown away, so that they never block or get
    SIGPIPE. `null` is an open /dev/null. `on_done` is called once nothing more will be delivered.
    """

    def __init__(self, loop: Loop, null: int, stream: Stream, sub: int, on_done: Callable[[], None]) -> None:
        self.sub = sub
        self.done = False
        self._loop, self._null, self._stream, self._on_done = loop, null, stream, on_done
        self._fd, self.child_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._fd, False)
        self._widened = False
        # How many more bytes are the command's; None while it runs.
        self._left: int | None = None

    def begin(self) -> None:
        """Start to read; called when the command has started."""
        os.close(self.child_end)
        self._loop.watch(self._fd, IN | ONCE, self._on_readable)

    def abandon(self) -> None:
        """Close both ends; the command was never started."""
        os.close(self.child_end)
        os.close(self._fd)
        self.done = True

    def _on_readable(self, events: int) -> None:
        if self.done:
            self._discard()
        elif not events & IN:  # hung up: nothing is in it and nobody can write any more
            self._close()
            self._finish()
        else:
            self._stream.ready(self)

    def fill(self, room: memoryview) -> int:
        """Read from the pipe into a frame."""
        if self.done:
            return 0
        if self._left is not None:
            room = room[: self._left]
        if not room:
            self._finish()
            return 0
        try:
            size = os.readv(self._fd, [room])
        except BlockingIOError:
            self._loop.change(self._fd, IN | ONCE)
            return 0
        if size == 0:
            self._close()
            self._finish()
        elif self._left is not None:
            self._left -= size
        elif size == protocol.MAX_PAYLOAD and not self._widened:
            # Much output: a wider pipe means fewer turns between the command and us. One with little output is not
            # worth the call.
            self._widened = True
            with suppress(PermissionError):  # the user's pipes have used up what he may have; this one stays as it is
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _WIDE_PIPE)
        return size

    def command_ended(self) -> None:
        """The command has ended: what it wrote and was not read yet is in the pipe now."""
        if self.done:
            return
        self._left = int.from_bytes(fcntl.ioctl(self._fd, termios.FIONREAD, b"\0\0\0\0"), sys.byteorder)
        if self._left == 0:
            self._finish()
        else:
            self._stream.ready(self)

    def discard(self) -> None:
        """Throw away all that comes from now on; nobody listens any more."""
        if not self.done:
            self._finish()

    def _finish(self) -> None:
        self.done = True
        if self._fd >= 0:
            self._loop.change(self._fd, IN)
        self._on_done()

    def _discard(self) -> None:
        try:
            if os.splice(self._fd, self._null, _DISCARD_SIZE, flags=_SPLICE_NONBLOCK):
                return
        except BlockingIOError:
            return
        self._close()

    def _close(self) -> None:
        self._loop.unwatch(self._fd)
        os.close(self._fd)
        self._fd = -1


class InputPipe:
    """A command's stdin. What the command does not read is thrown away; that is no error."""

    def __init__(self, loop: Loop, stream: Stream) -> None:
        self._loop, self._stream = loop, stream
        self.child_end, self._fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._fd, False)
        self._waiting: deque[memoryview] = deque()
        self._watched = False
        self._ended = False

    def begin(self) -> None:
        """Called when the command has started."""
        os.close(self.child_end)

    def abandon(self) -> None:
        """Close both ends; the command was never started."""
        os.close(self.child_end)
        self.close()

    def take(self, payload: memoryview) -> None:
        """Pass bytes on; as many as the flow control allows are kept while the command does not read."""
        if self._fd < 0:
            self._stream.consumed(len(payload))
            return
        if not self._waiting:
            payload = self._write(payload)
        if payload and self._fd >= 0:
            self._waiting.append(memoryview(bytes(payload)))
            self._wait_writable()

    def end(self) -> None:
        """No more comes: end of file for the command, after what is kept."""
        self._ended = True
        if not self._waiting:
            self.close()

    def close(self) -> None:
        """Close the pipe and throw away what is kept. Idempotent."""
        if self._fd < 0:
            return
        if self._watched:
            self._loop.unwatch(self._fd)
        os.close(self._fd)
        self._fd = -1
        kept = sum(len(payload) for payload in self._waiting)
        self._waiting.clear()
        self._stream.consumed(kept)

    def _write(self, payload: memoryview) -> memoryview:
        """Write what the pipe takes now and return the rest."""
        try:
            written = os.write(self._fd, payload)
        except BlockingIOError:
            return payload
        except BrokenPipeError:
            self._stream.consumed(len(payload))
            self.close()
            return payload[:0]
        self._stream.consumed(written)
        return payload[written:]

    def _pass_on(self, _: int) -> None:
        while self._waiting:
            rest = self._write(self._waiting.popleft())
            if rest:
                self._waiting.appendleft(rest)
                return
        if self._fd < 0:
            return
        if self._ended:
            self.close()
        else:
            self._loop.unwatch(self._fd)
            self._watched = False

    def _wait_writable(self) -> None:
        if not self._watched:
            self._loop.watch(self._fd, OUT, self._pass_on)
            self._watched = True
