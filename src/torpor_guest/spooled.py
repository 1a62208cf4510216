"""A job's stdout and stderr: from its pipe into a spool, and from there to everybody who listens."""

from __future__ import annotations

import os
from typing import Protocol

from torpor_guest.connection import Stream
from torpor_guest.loop import IN, ONCE, Loop
from torpor_guest.pipes import ReadEnd
from torpor_guest.refusal import Refusal, invalid
from torpor_guest.spool import Spool

# What is read at once: as much as a pipe holds at first.
_CHUNK = 64 * 1024


def _nobody() -> None:
    """Nobody waits for the end of one output: that of the job comes right after."""


class SpooledPipe(ReadEnd):
    """A job's stdout or stderr.

    It is read as long as its spool has room, and needs nobody who listens. With `keeps_all` the command has to wait
    rather than that a byte is dropped that its caller has not got; without, it waits only for those who listen. Whoever
    begins to listen where nothing is left out is taken for the caller, who may have come back. Who begins further on is
    an observer: what is before him, and what he gets, stays for the caller.
    """

    def __init__(
        self, loop: Loop, null: int, spool: Spool, *, keeps_all: bool, ends: tuple[int, int] | None = None
    ) -> None:
        super().__init__(loop, null, _nobody, ends)
        self.spool = spool
        self.listeners: list[Ear] = []
        # Up to here everything was got by the caller.
        self._heard: int | None = 0 if keeps_all else None
        self._waits = False

    def begin(self) -> None:
        """Start to read; called when the command has started."""
        os.close(self.child_end)
        self._watch()

    def _watch(self) -> None:
        self._loop.watch(self._fd, IN, self._on_readable)

    def _read(self, size: int) -> bytes:
        """Return what there is, at most `size` bytes, b"" at the end. Raises BlockingIOError if that is nothing yet."""
        return os.read(self._fd, size)

    def _on_readable(self, events: int) -> None:
        if self.done:
            self._discard()
        elif self._waits:
            return
        elif not events & IN:
            self._hung_up()
        else:
            self._go_on()

    def _go_on(self) -> None:
        needed = self._first_needed()
        size = min(self.spool.room(needed), _CHUNK)
        if size <= 0:
            self._waits = True
            self._loop.change(self._fd, ONCE)  # not even its hang-up is of interest, more than once
            return
        try:
            data = self._read(size)
        except BlockingIOError:
            return
        if not data:
            self._hung_up()
            return
        self._keep(data, needed)
        if len(data) == _CHUNK:
            self._widen()

    def _drain(self, size: int) -> None:
        # All at once, and beyond what there is room for: it is no more than a pipe holds, and then the end is known.
        while size:
            try:
                data = self._read(min(size, _CHUNK))
            except BlockingIOError:
                break
            if not data:
                break
            self._keep(data, self._first_needed())
            size -= len(data)
        # Where it is less than was in it, another process has opened the same pipe and taken the rest.
        self._finish()

    def _keep(self, data: bytes, needed: int) -> None:
        self.spool.add(data, needed)
        for ear in self.listeners:
            ear.hear()

    def _first_needed(self) -> int:
        """Return the offset from which on nothing may be dropped."""
        first = self.spool.end if self._heard is None else self._heard
        for ear in self.listeners:
            first = min(first, ear.at)
        return first

    def moved(self) -> None:
        """Somebody who listens has got more, or listens no more: there may be room now."""
        if self._heard is not None:
            self._heard = max((self._heard, *(ear.at for ear in self.listeners if ear.is_callers)))
        if self._waits and self.spool.room(self._first_needed()) > 0:
            self._waits = False
            self._loop.change(self._fd, IN)

    def join(self, ear: Ear) -> None:
        """Somebody listens."""
        ear.is_callers = self._heard is not None and ear.at <= self._heard
        self.listeners.append(ear)

    def leave(self, ear: Ear) -> None:
        """Somebody listens no more."""
        self.listeners.remove(ear)
        if self._waits:
            self.moved()

    def _finish(self) -> None:
        if self._waits:
            self._waits = False
            self._loop.change(self._fd, IN)
        super()._finish()


class Owner(Protocol):
    """Whose ears they are."""

    def settle(self) -> None:
        """One ear has got all that there is."""

    def leave(self) -> None:
        """Listen no more."""


class Ear:
    """One listener's place in one output, and a source of his stream: from the offset `at` on."""

    def __init__(self, owner: Owner, stream: Stream, sub: int, pipe: SpooledPipe, at: int) -> None:
        self.sub, self.at, self.is_callers = sub, at, False
        self._owner, self._stream, self._pipe = owner, stream, pipe

    @property
    def caught_up(self) -> bool:
        """Whether he has got all that there is."""
        return self.at == self._pipe.spool.end

    def begin(self) -> None:
        """Listen from now on."""
        self._pipe.join(self)
        if not self.caught_up:
            self.hear()

    def hear(self) -> None:
        """There is more."""
        self._stream.ready(self)

    def fill(self, room: memoryview) -> int:
        """Copy what comes next into a frame."""
        try:
            size = self._pipe.spool.copy(self.at, room)
        except OSError as error:  # the disk cannot be read; whoever cannot go on must not hold up the command
            self._owner.leave()
            raise Refusal("failed", f"the command's output could not be read: {error}") from error
        if size == 0:
            self._owner.settle()
            return 0
        self.at += size
        self._pipe.moved()
        return size

    def leave(self) -> None:
        """Listen no more."""
        self._pipe.leave(self)


def check_offset(name: str, at: int, spool: Spool) -> None:
    """Raise Refusal unless output can be told from an offset on."""
    if at > spool.end:
        raise invalid(f"{name} is {at}, but the command has written {spool.end} bytes there so far")
    if at < spool.start:
        raise invalid(f"{name} is {at}, but what is before {spool.start} is not kept any more")
