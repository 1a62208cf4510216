"""The ends of a command's pipes that the agent holds."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import termios
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from torpor_guest import protocol
from torpor_guest.connection import Stream
from torpor_guest.loop import IN, ONCE, OUT, Loop
from torpor_guest.refusal import no_room

_WIDE_PIPE = 256 * 1024
_DISCARD_SIZE = 1024 * 1024
_SPLICE_NONBLOCK = 2


class ReadEnd:
    """The agent's end of a command's stdout or stderr.

    Once the command has ended exactly what is in the pipe at that moment is its output; what background children write
    later is read and thrown away, so that they never block or get SIGPIPE. `null` is an open /dev/null. `on_done` is
    called once there is no more output to be had from it. `ends`: ours and the command's, of a pipe of its own if not
    given.
    """

    def __init__(self, loop: Loop, null: int, on_done: Callable[[], None], ends: tuple[int, int] | None = None) -> None:
        self.done = False
        self._loop, self._null, self._on_done = loop, null, on_done
        self._fd, self.child_end = ends or os.pipe2(os.O_CLOEXEC)
        if self._fd >= 0:
            os.set_blocking(self._fd, False)
        self._widened = False

    def abandon(self) -> None:
        """Close both ends; the command was never started."""
        os.close(self.child_end)
        os.close(self._fd)
        self._fd = -1
        self.done = True

    def command_ended(self) -> None:
        """The command has ended: what it wrote and was not read yet is in the pipe now."""
        if self.done:
            return
        size = int.from_bytes(fcntl.ioctl(self._fd, termios.FIONREAD, b"\0\0\0\0"), sys.byteorder)
        if size == 0:
            self._finish()
        else:
            self._drain(size)

    def _drain(self, size: int) -> None:
        """So many bytes in the pipe are the last that are the command's."""
        raise NotImplementedError

    def _widen(self) -> None:
        """Much output: a wider pipe means fewer turns between the command and us. For little it is not worth it."""
        if not self._widened:
            self._widened = True
            with suppress(PermissionError):  # the user's pipes have used up what he may have; this one stays as it is
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _WIDE_PIPE)

    def _finish(self) -> None:
        self.done = True
        self._on_done()

    def _hung_up(self) -> None:
        """Nothing is in it and nobody can write any more."""
        self._close()
        self._finish()

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


class OutputPipe(ReadEnd):
    """A command's stdout or stderr as a source of one stream. It is read only as fast as the host takes it."""

    def __init__(self, loop: Loop, null: int, stream: Stream, sub: int, on_done: Callable[[], None]) -> None:
        super().__init__(loop, null, on_done)
        self.sub = sub
        # How many bytes were read.
        self.count = 0
        # How many more are the command's; None while it runs.
        self._left: int | None = None
        self._stream = stream

    def begin(self) -> None:
        """Start to read; called when the command has started."""
        os.close(self.child_end)
        self._loop.watch(self._fd, IN | ONCE, self._on_readable)

    def _on_readable(self, events: int) -> None:
        if self.done:
            self._discard()
        elif not events & IN:
            self._hung_up()
        else:
            self._stream.ready(self)

    def _drain(self, size: int) -> None:
        self._left = size
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
            if self._left is not None:  # another process has opened the same pipe, and taken the rest
                self._finish()
            else:
                self._loop.change(self._fd, IN | ONCE)
            return 0
        self.count += size
        if size == 0:
            self._hung_up()
        elif self._left is not None:
            self._left -= size
        elif size == protocol.MAX_PAYLOAD:
            self._widen()
        return size

    def discard(self) -> None:
        """Throw away all that comes from now on; nobody listens any more."""
        if not self.done:
            self._finish()

    def _finish(self) -> None:
        if self._fd >= 0:
            self._loop.change(self._fd, IN)
        super()._finish()


class InputPipe:
    """A command's stdin. What the command does not read is thrown away; that is no error.

    `ends`: the command's and ours, of a pipe of its own if not given.
    """

    def __init__(self, loop: Loop, ends: tuple[int, int] | None = None) -> None:
        # Called when all that was taken is passed on, and when the pipe is closed.
        self.on_idle: list[Callable[[], None]] = []
        # How many bytes were taken while it was open, and how many of them are in the pipe.
        self.taken = self.written = 0
        self._loop = loop
        self.child_end, self._fd = ends or os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._fd, False)
        # What the pipe does not take yet, whose it is, and how much he gets credit for then.
        self._waiting: deque[tuple[memoryview, Stream | None, int]] = deque()
        self._watched = False
        self._ended = False

    @property
    def closed(self) -> bool:
        """Whether the command can get no more, or will not once it has what was taken."""
        return self._fd < 0 or self._ended

    @property
    def idle(self) -> bool:
        """Whether all that was taken is passed on."""
        return not self._waiting

    def begin(self) -> None:
        """Called when the command has started."""
        os.close(self.child_end)

    def abandon(self) -> None:
        """Close both ends; the command was never started."""
        os.close(self.child_end)
        self.close()

    def take(self, payload: memoryview, stream: Stream, skip: int = 0) -> None:
        """Pass on what a stream has brought, without the first `skip` bytes, which came before.

        As much as the flow control allows is kept while the command does not read.
        """
        size = len(payload)
        if self._fd < 0:
            stream.consumed(size)
            return
        payload = payload[skip:]
        self.taken += len(payload)
        self._pass(payload, stream, size)

    def _pass(self, payload: memoryview, stream: Stream | None, size: int) -> None:
        if not self._waiting:
            payload = self._write(payload)
        if self._fd >= 0 and (payload or self._waiting):
            self._waiting.append((memoryview(bytes(payload)), stream, size))
            self._wait_writable()
        elif stream is not None:
            stream.consumed(size)

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
        while self._waiting:
            _, stream, size = self._waiting.popleft()
            if stream is not None:
                stream.consumed(size)
        self._tell_idle()

    def _write(self, payload: memoryview) -> memoryview:
        """Write what the pipe takes now and return the rest."""
        if not payload:
            return payload
        try:
            written = os.write(self._fd, payload)
        except BlockingIOError:
            return payload
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):  # a terminal that was hung up has the latter
                raise
            self.close()
            return payload[:0]
        self.written += written
        return payload[written:]

    def _pass_on(self, _: int) -> None:
        while self._waiting:
            payload, stream, size = self._waiting[0]
            rest = self._write(payload)
            if self._fd < 0:
                return
            if rest:
                self._waiting[0] = (rest, stream, size)
                return
            self._waiting.popleft()
            if stream is not None:
                stream.consumed(size)
        if self._ended:
            self.close()
        else:
            self._loop.unwatch(self._fd)
            self._watched = False
            self._tell_idle()

    def _tell_idle(self) -> None:
        for tell in self.on_idle.copy():
            tell()

    def _wait_writable(self) -> None:
        if not self._watched:
            self._loop.watch(self._fd, OUT, self._pass_on)
            self._watched = True


_Output = TypeVar("_Output", bound=ReadEnd)


def opened(
    out: Callable[[], _Output], err: Callable[[], _Output], stdin: Callable[[], InputPipe] | None
) -> tuple[_Output, _Output, InputPipe | None]:
    """Open a command's pipes, all or none. Raises Refusal if there are no descriptors for them."""
    made: list[ReadEnd | InputPipe] = []
    try:
        made.append(first := out())
        made.append(second := err())
        return first, second, None if stdin is None else stdin()
    except OSError as error:
        for pipe in made:
            pipe.abandon()
        raise no_room(error) from error
