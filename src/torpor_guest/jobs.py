"""Commands: `exec`, and `start`, `attach`, `input`, `resize`, `signal`, `job` and `jobs` for those with an id.

A job is started once, however often its order comes, and kept by the agent: so it is frozen, woken and forked with the
guest, and outlives whoever listens.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from torpor_guest import protocol
from torpor_guest.commands import Command
from torpor_guest.connection import SendsOnly, Stream
from torpor_guest.execs import Execs, Wish
from torpor_guest.job import Feeder, Job, Listener, Manner, Waiting, mark_of
from torpor_guest.pipes import InputPipe
from torpor_guest.refusal import Refusal, invalid
from torpor_guest.requests import Request
from torpor_guest.spool import HELD
from torpor_guest.terminals import Size

# Of the jobs that have ended so many are remembered, with so much output.
_MOST_ENDED = 64
_MOST_KEPT = 512 * 1024 * 1024
# And of those that were forgotten so many names.
_MOST_NAMES = 4096
# With more jobs than this, the output of each further one is in memory only as long as it is this short.
_MANY = 128
_HELD_OF_MANY = 4096
_MAX_NAME = 64
_MOST_TERMINALS = 64
_MOST_BYTES = 2**53


class Jobs:
    """All commands of the guest."""

    def __init__(self, execs: Execs) -> None:
        self._execs = execs
        self._jobs: dict[str, Job] = {}
        self._ended: deque[tuple[Job, int]] = deque()
        self._kept = 0
        self._forgotten: dict[str, None] = {}
        self._nameless: dict[str, Command] = {}
        self._count = count(1)

    def operations(self) -> dict[str, Callable[[Stream, Request], None]]:
        """Return what the host can ask for."""
        return {
            "exec": self.exec,
            "start": self.start,
            "attach": self.attach,
            "input": self.input,
            "resize": self.resize,
            "signal": self.signal,
            "job": self.describe,
            "jobs": self.list,
        }

    def exec(self, stream: Stream, request: Request) -> None:
        """`exec` {job?, argv, env?, cwd?, user?, timeout_s?, terminal?, stdin?, stdin_digest?, stdout_from?, ...}, with
        INPUT if it says `stdin`: OUTPUT and ERRORS, then RESULT, how it ended. A program that is not there is a result,
        too.

        With `job` it is started unless it is there, and left alone by CANCEL; without, that kills it. `stdin_digest` is
        any text by which the INPUT to come is told from others. With `terminal` {rows, cols}, which only a job can
        have, a pseudo-terminal is its stdin, stdout, stderr and controlling terminal, and all of its output is OUTPUT;
        without `argv` it is the user's login shell then.
        """
        if request.optional_text("job") is None:
            self._run(stream, request)
            return
        starts = _starts_of(request)
        manner = Manner(waited_for=True, with_input=request.flag("stdin"), digest=_digest_of(request))
        job = self._found_or_started(request, manner, began=starts != (0, 0))
        if manner.with_input:
            Waiting(stream, job, starts)
        else:
            Listener(stream, job, starts)

    def start(self, stream: Stream, request: Request) -> None:
        """`start` {job, argv, ..., stdin?, stdin_digest?, open?, hangup_s?}: RESULT, what it is, once the INPUT is
        passed on that it has with `stdin`. It is started unless it is there. With `open` its stdin stays open, as a
        terminal always does. With `hangup_s` its terminal is hung up once nobody has listened to it for so long;
        without a terminal it is killed.
        """
        has_input, stays_open = request.flag("stdin"), request.flag("open")
        manner = Manner(False, has_input, _digest_of(request), stays_open, request.optional_seconds("hangup_s"))
        job = self._found_or_started(request, manner)
        if manner.with_input:
            _Starting(stream, job)
        else:
            stream.result(job.description())

    def attach(self, stream: Stream, request: Request) -> None:
        """`attach` {job, stdout_from?, stderr_from?}: as an exec of a job that is there."""
        Listener(stream, self._found(request), _starts_of(request))

    def input(self, stream: Stream, request: Request) -> None:
        """`input` {job, close?}, INPUT: RESULT {bytes}, how many of them its stdin took; fewer if it was closed.

        On a terminal several may type at the same time, and `close` is its character for the end of a file.
        """
        job, close = self._found(request), request.flag("close")
        pipe = job.input
        if pipe is None or pipe.closed or not (job.manner.stays_open or job.terminal is not None):
            raise Refusal("conflict", f"the process {job.name} takes no input (any more)")
        if job.terminal is None and (job.feeder is not None or not pipe.idle):
            raise Refusal("conflict", f"somebody else is passing input to the process {job.name}")
        _Input(stream, job, pipe, close=close)

    def resize(self, stream: Stream, request: Request) -> None:
        """`resize` {job, rows, cols}: RESULT {}. The programs in the foreground of its terminal get SIGWINCH."""
        self._found(request).resize(Size.of(request))
        stream.result({})

    def signal(self, stream: Stream, request: Request) -> None:
        """`signal` {job, signal}: RESULT {}. SIGKILL kills all its processes, others go to its process group, or to
        that in the foreground of its terminal; SIGHUP hangs a terminal up.
        """
        job, name = self._found(request), request.text("signal")
        try:
            number = signal.Signals[name]
        except KeyError:
            raise invalid(f"there is no signal {name[:64]!r}") from None
        job.signal(number)
        stream.result({})

    def describe(self, stream: Stream, request: Request) -> None:
        """`job` {job}: RESULT, what it is."""
        stream.result(self._found(request).description())

    def list(self, stream: Stream, request: Request) -> None:
        """`jobs` {}: OUTPUT, one object a line for each that runs or is remembered, oldest first; RESULT {jobs}."""
        del request
        told = [job.description() for job in self._jobs.values()]
        told += [_told_of(name, command) for name, command in self._nameless.items()]
        told.sort(key=lambda one: one["started_at"])
        _List(stream, told)

    def _run(self, stream: Stream, request: Request) -> None:
        wish = Wish.of(request)
        if wish.terminal is not None:
            raise invalid("a command without an id cannot have a terminal")
        with_input = request.flag("stdin")
        order = self._execs.order_of(wish)
        command = Command(self._execs, stream, wish, with_input=with_input)
        name = f"exec-{next(self._count)}"
        self._nameless[name] = command
        command.on_gone = lambda: self._nameless.__delitem__(name)
        try:
            command.start(order)
        except BaseException:
            del self._nameless[name]
            raise

    def _found(self, request: Request) -> Job:
        name = _name_of(request)
        job = self._jobs.get(name)
        if job is None:
            raise self._unknown(name)
        return job

    def _unknown(self, name: str) -> Refusal:
        if name in self._forgotten:
            return Refusal("not_found", f"the process {name} has ended, and is not remembered any more")
        return Refusal("not_found", f"there is no process {name}")

    def _found_or_started(self, request: Request, manner: Manner, *, began: bool = False) -> Job:
        """Return the job of an order. With `began` it was started before, so it is not started now."""
        name, wish = _name_of(request), Wish.of(request)
        job = self._jobs.get(name)
        if job is not None:
            if job.mark != mark_of(wish, manner):
                raise Refusal("conflict", f"the process {name} was started by another order")
            return job
        if began or name in self._forgotten:  # it is never run twice
            raise self._unknown(name)
        order = self._execs.order_of(wish)
        if wish.terminal is not None:
            self._check_terminals()
        job = Job(self._execs, name, wish, manner, HELD if len(self._jobs) < _MANY else _HELD_OF_MANY)
        job.on_end = self._remember
        job.start(order)
        self._jobs[name] = job
        return job

    def _check_terminals(self) -> None:
        open_now = sum(1 for job in self._jobs.values() if job.terminal is not None and job.outcome is None)
        if open_now >= _MOST_TERMINALS:
            raise Refusal("busy", f"{_MOST_TERMINALS} terminals are open in this sandbox already")

    def _remember(self, job: Job) -> None:
        size = job.size
        self._ended.append((job, size))
        self._kept += size
        if self._too_many():
            self._execs.loop.step(self._forget)

    def _too_many(self) -> bool:
        return len(self._ended) > _MOST_ENDED or self._kept > _MOST_KEPT

    def _forget(self) -> bool:
        """Forget the oldest that have ended and that nobody listens to, until there are few enough."""
        for job, size in list(self._ended):
            if not self._too_many():
                break
            if not job.listeners:
                self._ended.remove((job, size))
                self._kept -= size
                del self._jobs[job.name]
                job.forget()
                self._forgotten[job.name] = None
        while len(self._forgotten) > _MOST_NAMES:
            del self._forgotten[next(iter(self._forgotten))]
        return False


def _name_of(request: Request) -> str:
    name = request.text("job")
    if not 0 < len(name) <= _MAX_NAME:
        raise invalid(f"job must be a text of 1 to {_MAX_NAME} characters")
    return name


def _digest_of(request: Request) -> str | None:
    return request.optional_text("stdin_digest")


def _starts_of(request: Request) -> tuple[int, int]:
    stdout_from = request.optional_whole("stdout_from", 0, _MOST_BYTES)
    stderr_from = request.optional_whole("stderr_from", 0, _MOST_BYTES)
    return stdout_from or 0, stderr_from or 0


def _told_of(name: str, command: Command) -> dict[str, Any]:
    stdout_bytes, stderr_bytes = command.counts
    return {
        "id": name,
        "command": command.wish.shown(),
        "user": command.wish.user,
        "pid": command.pid,
        "waited_for": True,
        "started_at": command.started_at,
        "stdout_bytes": stdout_bytes,
        "stderr_bytes": stderr_bytes,
        "stdout_start": stdout_bytes,
        "stderr_start": stderr_bytes,
        "terminal": None,
        "outcome": None,
    }


class _Starting:
    """A job's first input under way."""

    def __init__(self, stream: Stream, job: Job) -> None:
        self._stream, self._job = stream, job
        self._feeder = Feeder(stream, job)
        stream.operation = job.feeder = self

    def on_data(self, payload: memoryview) -> None:
        self._feeder.take(payload)

    def on_end(self) -> None:
        self._feeder.end()
        self.on_drop()
        self._stream.result(self._job.description())

    def on_cancel(self) -> None:
        self.on_drop()
        self._stream.refuse(Refusal("cancelled", "the host gave up"))

    def on_drop(self) -> None:
        if self._job.feeder is self:
            self._job.feeder = None


class _Input:
    """More input for a job under way."""

    def __init__(self, stream: Stream, job: Job, pipe: InputPipe, *, close: bool) -> None:
        self._stream, self._job, self._pipe, self._close = stream, job, pipe, close
        self._before = pipe.written
        self._complete = False
        # How many bytes it has taken of a stream that others write to, too.
        self._taken = 0
        stream.operation = job.feeder = self
        pipe.on_idle.append(self._settle)

    def on_data(self, payload: memoryview) -> None:
        before = self._pipe.taken
        self._pipe.take(payload, self._stream)
        self._taken += self._pipe.taken - before

    def on_end(self) -> None:
        self._complete = True
        if self._close:
            self._pipe.end()
        self._settle()

    def _settle(self) -> None:
        """Answer when all of it is passed on, or no more can be."""
        if self._stream.open and self._pipe.idle and (self._complete or self._pipe.closed):
            self._leave()
            written = self._pipe.written - self._before
            self._stream.result({"bytes": written if self._job.terminal is None else min(written, self._taken)})

    def _leave(self) -> None:
        if self._job.feeder is self:
            self._job.feeder = None
        if self._settle in self._pipe.on_idle:
            self._pipe.on_idle.remove(self._settle)

    def on_cancel(self) -> None:
        self._leave()
        self._stream.refuse(Refusal("cancelled", "the host gave up"))

    def on_drop(self) -> None:
        self._leave()


class _List(SendsOnly):
    """Sends what is told of each job."""

    sub = protocol.OUTPUT

    def __init__(self, stream: Stream, told: list[dict[str, Any]]) -> None:
        self._stream, self._told = stream, deque(told)
        self._count = len(told)
        self._waiting = b""
        stream.operation = self
        stream.ready(self)

    def fill(self, room: memoryview) -> int:
        """Send the next lines."""
        if not self._waiting and self._told:
            self._waiting = protocol.dump(self._told.popleft()) + b"\n"
        size = min(len(room), len(self._waiting))
        room[:size] = self._waiting[:size]
        self._waiting = self._waiting[size:]
        if size == 0:
            self._stream.result({"jobs": self._count})
        return size

    def on_cancel(self) -> None:
        self._stream.refuse(Refusal("cancelled", "the host gave up"))

    def on_drop(self) -> None:
        """Nothing is held."""
