"""One job: a command with an id. It keeps what it writes and how it ended, whoever listens."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from torpor_guest import protocol, spawn
from torpor_guest.connection import SendsOnly, Stream
from torpor_guest.execs import Execs, Wish
from torpor_guest.loop import Timer
from torpor_guest.pipes import InputPipe, opened
from torpor_guest.process import Outcome, Process, last_words
from torpor_guest.refusal import Refusal, invalid, no_room
from torpor_guest.spool import Spool
from torpor_guest.spooled import Ear, SpooledPipe, check_offset
from torpor_guest.terminals import Silence, Size, Terminal, TerminalInput, TerminalOutput, take_as_controlling

# What is kept of one stream at most. Of an exec nothing is dropped that was not heard; then it has to wait.
_EXEC_KEEPS = 16 * 1024 * 1024
_STARTED_KEEPS = 256 * 1024 * 1024
# Of a terminal it is what was on it lately; whoever listens is half of that behind at most.
_TERMINAL_KEEPS = 1024 * 1024


class Manner(NamedTuple):
    """How a job is run: `waited_for` by an exec or on its own; with a stdin, by whose `digest` it is known again; one
    that stays open for what is sent later. `hangup_s`: ended once nobody has listened to it for so long, in seconds;
    while the guest sleeps no time passes.
    """

    waited_for: bool
    with_input: bool
    digest: str | None = None
    stays_open: bool = False
    hangup_s: float | None = None


class Job:
    """A command with an id.

    `mark` tells its order from others. `held`: how much its spools keep in memory. `on_end` is called with it when it
    has ended.
    """

    def __init__(self, execs: Execs, name: str, wish: Wish, manner: Manner, held: int) -> None:
        self.name, self.manner = name, manner
        self.mark = mark_of(wish, manner)
        self.started_at = time.time()
        self.outcome: Outcome | None = None
        self.on_end: Callable[[Job], None] = lambda _: None
        self.listeners: list[Listener] = []
        self.feeder: object | None = None
        self._shown, self._user, self._execs = wish.shown(), wish.user, execs
        self._process = Process(execs, wish.timeout_s, self._ended)
        self._timer: Timer | None = None
        self.terminal: Terminal | None = None
        self.outputs: tuple[SpooledPipe, SpooledPipe]
        self.input: InputPipe | None
        if wish.terminal is None:
            self._open_pipes(held)
        else:
            self._open_terminal(wish.terminal, held)

    def _open_pipes(self, held: int) -> None:
        execs, manner = self._execs, self.manner
        # One that is to be hung up once nobody listens has somebody who does, and waits for him.
        is_heard = manner.waited_for or manner.hangup_s is not None
        keeps = _EXEC_KEEPS if is_heard else _STARTED_KEEPS

        def output() -> SpooledPipe:
            spool = Spool(keeps, held)
            return SpooledPipe(execs.loop, execs.null, spool, keeps_all=is_heard)

        needs_pipe = manner.with_input or manner.stays_open
        out, err, self.input = opened(output, output, (lambda: InputPipe(execs.loop)) if needs_pipe else None)
        self.outputs = (out, err)

    def _open_terminal(self, size: Size, held: int) -> None:
        loop, null, keeps_all = self._execs.loop, self._execs.null, self.manner.waited_for
        self.terminal = terminal = Terminal(size)
        screen = TerminalOutput(loop, null, Spool(_TERMINAL_KEEPS, held), terminal, keeps_all=keeps_all)
        self.outputs = (screen, Silence(loop, null))
        try:
            self.input = TerminalInput(loop, terminal)
        except OSError as error:
            screen.abandon()
            raise no_room(error) from error

    def start(self, order: spawn.Order) -> None:
        """Start it. Raises Refusal; a program that cannot be run is a job that has ended."""
        pipes: list[SpooledPipe | InputPipe] = [*([self.input] if self.input else []), *self.outputs]
        try:
            self._process.start(order, self._streams(order))
        except BaseException as error:
            for pipe in pipes:
                pipe.abandon()
            if not isinstance(error, spawn.CannotRun):
                raise
            self._say(last_words(order.argv[0], error))
            self._ended(self._process.cannot_run(error))
            return
        for pipe in pipes:
            pipe.begin()
        self.heard()

    def _streams(self, order: spawn.Order) -> spawn.Streams:
        if self.terminal is not None:
            self.terminal.give_to(order.account)
            end = self.terminal.child_end
            return spawn.Streams(end, end, end, take_as_controlling)
        stdin = self._execs.null if self.input is None else self.input.child_end
        return spawn.Streams(stdin, self.outputs[0].child_end, self.outputs[1].child_end)

    def _say(self, words: bytes) -> None:
        if self.terminal is None:
            self.outputs[1].spool.add(words, 0)
        else:
            self.outputs[0].spool.add(words.replace(b"\n", b"\r\n"), 0)

    def heard(self) -> None:
        """Somebody listens now, or nobody does any more, which is to end it after a while where it was ordered so."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        after_s = self.manner.hangup_s
        if after_s is not None and not self.listeners and self._process.running:
            self._timer = self._execs.after(after_s, self.hang_up)

    def hang_up(self) -> None:
        """Hang its terminal up, of which the kernel tells its processes by SIGHUP; kill it where it has none."""
        if self.terminal is None:
            self._process.kill()
            return
        if self.input is not None:
            self.input.close()
        self.outputs[0].command_ended()

    def resize(self, size: Size) -> None:
        """Give its terminal another size. Raises Refusal if it has none (any more)."""
        if self.terminal is None:
            raise invalid(f"the process {self.name} has no terminal")
        if self.outputs[0].done:
            raise Refusal("conflict", f"the terminal of the process {self.name} is not there any more")
        self.terminal.resize(size)

    def _ended(self, outcome: Outcome) -> None:
        try:
            if self._timer is not None:
                self._timer.cancel()
            if self.input is not None:
                self.input.close()
            for pipe in self.outputs:
                pipe.command_ended()
        finally:  # whatever became of its last words, it has ended
            self.outcome = outcome
            for listener in self.listeners.copy():
                listener.settle()
            self.on_end(self)

    @property
    def size(self) -> int:
        """How many bytes of output it keeps."""
        return self.outputs[0].spool.size + self.outputs[1].spool.size

    def signal(self, number: int) -> None:
        """Send SIGKILL to all its processes, another signal to its process group, or the one its terminal's keys go to;
        by SIGHUP its terminal is hung up.

        Raises Refusal if it has ended.
        """
        if self.terminal is not None and number == signal.SIGHUP and self._process.running and not self.outputs[0].done:
            self.hang_up()
            return
        has_keys = self.terminal is not None and not self.outputs[0].done and number != signal.SIGKILL
        if self.terminal is not None and has_keys and self._process.running and self.terminal.signal(number):
            return
        if not self._process.signal(number):
            raise Refusal("conflict", f"the process {self.name} has ended")

    def result(self) -> dict[str, Any]:
        """Return how it ended, and how much it has written by then."""
        stdout, stderr = self.outputs
        return {**(self.outcome or {}), "stdout_bytes": stdout.spool.end, "stderr_bytes": stderr.spool.end}

    def description(self) -> dict[str, Any]:
        """Return what is told of it: the fields of the host's `Job`."""
        stdout, stderr = (pipe.spool for pipe in self.outputs)
        return {
            "id": self.name,
            "command": self._shown,
            "user": self._user,
            "pid": self._process.pid if self._process.running else None,
            "waited_for": self.manner.waited_for,
            "started_at": self.started_at,
            "stdout_bytes": stdout.end,
            "stderr_bytes": stderr.end,
            "stdout_start": stdout.start,
            "stderr_start": stderr.start,
            "terminal": None if self.terminal is None else self.terminal.size._asdict(),
            "outcome": self.outcome,
        }

    def forget(self) -> None:
        """Keep nothing of it any more."""
        for pipe in self.outputs:
            pipe.spool.close()


def mark_of(wish: Wish, manner: Manner) -> int:
    """Return a number by which an order is known again, for as long as the agent lives.

    Two that differ have the same one by accident once in 2**64 times, and an order as it is can be long.
    """
    argv, env, *rest = wish
    return hash((tuple(argv), frozenset(env.items()), *rest, *manner))


class Feeder:
    """Passes to a job's stdin, from its first byte on, what a stream brings; what came before already is passed over.

    So a host that does not know how much of it has arrived may send it again.
    """

    def __init__(self, stream: Stream, job: Job) -> None:
        self._stream, self._job = stream, job
        self._at = 0

    def take(self, payload: memoryview) -> None:
        """Pass on the next bytes."""
        size, pipe = len(payload), self._job.input
        if pipe is None:
            self._stream.consumed(size)
            return
        skip = min(max(pipe.taken - self._at, 0), size)
        self._at += size
        pipe.take(payload, self._stream, skip)

    def end(self) -> None:
        """That was all; the job's stdin ends with it, unless it is to stay open."""
        if self._job.input is not None and not self._job.manner.stays_open:
            self._job.input.end()


class Listener(SendsOnly):
    """One stream that hears a job from two offsets on, and then how it ended."""

    def __init__(self, stream: Stream, job: Job, starts: tuple[int, int]) -> None:
        self._stream, self._job = stream, job
        stdout, stderr = job.outputs
        check_offset("stdout_from", starts[0], stdout.spool)
        check_offset("stderr_from", starts[1], stderr.spool)
        self._ears = (
            Ear(self, stream, protocol.OUTPUT, stdout, starts[0]),
            Ear(self, stream, protocol.ERRORS, stderr, starts[1]),
        )
        stream.operation = self
        job.listeners.append(self)
        job.heard()
        for ear in self._ears:
            ear.begin()
        if job.outcome is not None:
            self.settle()

    def settle(self) -> None:
        """Tell how the job ended, once it has and everything before was told."""
        if self._job.outcome is not None and self._ears[0].caught_up and self._ears[1].caught_up:
            self._stream.result(self._job.result())
            self.leave()

    def leave(self) -> None:
        """Listen no more."""
        self._job.listeners.remove(self)
        self._job.heard()
        for ear in self._ears:
            ear.leave()

    def on_cancel(self) -> None:
        self.leave()
        self._stream.refuse(Refusal("cancelled", "the host gave up"))

    def on_drop(self) -> None:
        self.leave()


class Waiting(Listener):
    """A listener who brings the job's stdin, too."""

    def __init__(self, stream: Stream, job: Job, starts: tuple[int, int]) -> None:
        self._feeder = Feeder(stream, job)
        super().__init__(stream, job, starts)

    def on_data(self, payload: memoryview) -> None:
        self._feeder.take(payload)

    def on_end(self) -> None:
        self._feeder.end()
