"""The agent's ends of a command's output: when another process reads along, and who has to have got what is dropped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any, cast

import pytest

from torpor_guest import protocol
from torpor_guest.connection import Stream
from torpor_guest.loop import IN, Loop
from torpor_guest.pipes import OutputPipe
from torpor_guest.spool import Spool
from torpor_guest.spooled import Ear, SpooledPipe

MIB = 1024 * 1024
KEEPS = 16 * MIB


class Quiet:
    """A stream, and the owner of an ear, who wants to know nothing."""

    def ready(self, source: object) -> None:
        """There is more."""

    def settle(self) -> None:
        """He has got all that there is."""

    def leave(self) -> None:
        """He listens no more."""


class Robbed(SpooledPipe):
    """A pipe that another process has opened, too, and reads when the command has ended, before the agent does."""

    takes = 0

    def _drain(self, size: int) -> None:
        steal(self, self.takes)
        super()._drain(size)


class RobbedOutput(OutputPipe):
    """The same of a command without an id."""

    def _drain(self, size: int) -> None:
        steal(self, size)
        super()._drain(size)


def steal(pipe: OutputPipe | SpooledPipe, size: int) -> None:
    thief = os.open(f"/proc/self/fd/{pipe._fd}", os.O_RDONLY | os.O_NONBLOCK)
    os.read(thief, size)
    os.close(thief)


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as undo:
        yield undo


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def null(undo: ExitStack) -> int:
    null = os.open("/dev/null", os.O_RDWR)
    undo.callback(os.close, null)
    return null


def a_writer(pipe: OutputPipe | SpooledPipe, undo: ExitStack) -> int:
    """Return another writing end, as a background child of the command has it."""
    writer = os.dup(pipe.child_end)
    undo.callback(os.close, writer)
    return writer


@pytest.mark.parametrize("child_lives", [True, False])
@pytest.mark.parametrize("takes", [40, 100])
def test_last_words_that_another_reader_takes_first_are_not_waited_for(
    loop: Loop, null: int, undo: ExitStack, child_lives: bool, takes: int
) -> None:
    pipe = Robbed(loop, null, Spool(KEEPS), keeps_all=True)
    pipe.takes = takes
    os.write(pipe.child_end, b"x" * 100)
    if child_lives:
        a_writer(pipe, undo)
    pipe.begin()
    pipe.command_ended()
    assert pipe.done
    assert pipe.spool.end == 100 - takes


def test_a_command_without_an_id_does_not_wait_for_them_either(loop: Loop, null: int, undo: ExitStack) -> None:
    told: list[bool] = []
    stream = cast("Stream", Quiet())
    pipe = RobbedOutput(loop, null, stream, protocol.OUTPUT, lambda: told.append(True))
    os.write(pipe.child_end, b"x" * 100)
    a_writer(pipe, undo)
    pipe.begin()
    pipe.command_ended()
    assert pipe.fill(memoryview(bytearray(1000))) == 0
    assert (pipe.done, told) == (True, [True])


class Written:
    """An exec's output, and what it writes, as far as it can."""

    def __init__(self, loop: Loop, null: int, undo: ExitStack) -> None:
        self.pipe = SpooledPipe(loop, null, Spool(KEEPS), keeps_all=True)
        self._writer = a_writer(self.pipe, undo)
        os.set_blocking(self._writer, False)
        self.pipe.begin()

    def write(self, size: int) -> int:
        """Write, and have it read; return how much that could be."""
        written = 0
        while written < size:
            before = written, self.pipe.spool.end
            with suppress(BlockingIOError):
                written += os.write(self._writer, bytes(min(size - written, 60_000)))
            self.pipe._on_readable(IN)
            if before == (written, self.pipe.spool.end):
                break
        return written

    def listen(self, at: int) -> Ear:
        ear = Ear(Quiet(), cast("Any", Quiet()), protocol.OUTPUT, self.pipe, at)
        ear.begin()
        return ear


def take(ear: Ear, size: int | None = None) -> int:
    """Have a listener take so much, or all there is."""
    room, taken = memoryview(bytearray(60_000)), 0
    while size is None or taken < size:
        got = ear.fill(room if size is None else room[: size - taken])
        if got == 0:
            break
        taken += got
    return taken


@pytest.fixture
def output(loop: Loop, null: int, undo: ExitStack) -> Written:
    return Written(loop, null, undo)


def test_an_observer_does_not_make_an_exec_s_unheard_output_go(output: Written) -> None:
    caller = output.listen(0)
    output.write(MIB)
    caller.leave()  # his line was lost before he heard anything
    observer = output.listen(output.pipe.spool.end)
    for _ in range(30):
        output.write(MIB)
        take(observer)
    end = output.pipe.spool.end
    assert end == KEEPS, "the command waits for its caller"
    back = output.listen(0)
    assert take(back) == end
    output.write(MIB)
    assert output.pipe.spool.end > end


def test_a_caller_who_comes_back_is_waited_for_where_he_is_then(output: Written) -> None:
    caller = output.listen(0)
    output.write(4 * MIB)
    take(caller, 3 * MIB)
    caller.leave()
    back = output.listen(2 * MIB)  # the last of it was lost on its way
    observer = output.listen(output.pipe.spool.end)
    output.write(4 * MIB)
    take(observer)
    take(back, 5 * MIB)
    back.leave()
    while output.write(MIB):
        take(observer)
    assert output.pipe.spool.start <= 7 * MIB
    assert take(output.listen(7 * MIB)) == output.pipe.spool.end - 7 * MIB


def test_two_who_listen_from_the_beginning_are_each_waited_for_and_neither_for_who_has_left(output: Written) -> None:
    slow, fast = output.listen(0), output.listen(0)
    while output.write(MIB):
        take(fast)
    assert output.pipe.spool.end == KEEPS
    slow.leave()
    end = output.pipe.spool.end
    output.write(MIB)
    take(fast)
    assert output.pipe.spool.end > end
