"""The jobs of the fake host: commands with an id, which outlive whoever listens to them."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any

from torpor import errors
from torpor.kit.clock import Clock
from torpor.kit.news import News
from torpor.kit.shielded import end_tasks
from torpor.testing.fake_interpreter import FakeInterpreter
from torpor.testing.fake_terminal import FakeTerminal, Out
from torpor.testing.guest import Call, Shell
from torpor.wire import frames, host
from torpor.wire.errors import to_body

if TYPE_CHECKING:
    from torpor.testing.host_machines import FakeMachine

_SIGNALS = {"SIGHUP": 1, "SIGINT": 2, "SIGKILL": 9, "SIGUSR1": 10, "SIGTERM": 15}
_CATS = (["cat"], ["/bin/sh", "-c", "cat"])
_STREAMS = (frames.Kind.STDOUT, frames.Kind.STDERR)
_pids = itertools.count(200)


class FakeJob:
    """One command. All it writes is kept. With open input only `cat` reads what is sent later.

    A snapshot does not have it, so neither a fork nor a rollback does. `interpreter`: what a code context runs.
    """

    def __init__(self, machine: FakeMachine, order: host.ExecOrder, clock: Clock) -> None:
        self.order = order
        self._machine, self._clock = machine, clock
        self._begun_at, self._began = clock.now().timestamp(), clock.monotonic()
        self._pid = next(_pids)
        self._outcome: host.ExecOutcome | None = None
        self._written = {kind: bytearray() for kind in _STREAMS}
        self._news = News()
        self._signal: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._input: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._is_open = order.terminal is not None or (isinstance(order, host.JobOrder) and order.open_stdin)
        self._terminal = None if order.terminal is None else self._new_terminal(order.terminal)
        self.interpreter = self._new_interpreter() if FakeInterpreter.is_meant(order) else None
        self._task = asyncio.create_task(self._run())
        machine.started.set()

    def described(self) -> host.Job:
        """Return the job as a host tells it."""
        argv = self.order.argv
        return host.Job(
            id=self.order.job or "",
            command=argv[2] if argv[:2] == ["/bin/sh", "-c"] else " ".join(argv or ["(login shell)"]),
            user=self.order.user,
            pid=self._pid,
            waited_for=not isinstance(self.order, host.JobOrder),
            started_at=self._begun_at,
            stdout_bytes=len(self._written[frames.Kind.STDOUT]),
            stderr_bytes=len(self._written[frames.Kind.STDERR]),
            terminal=None if self._terminal is None else self._terminal.size,
            outcome=self._outcome,
        )

    def checked(self, order: host.ExecOrder) -> FakeJob:
        """Return the job if an order is the one that started it. Raises Conflict."""
        fields = ("argv", "env", "cwd", "user", "timeout_s", "stdin", "terminal")
        if any(getattr(order, name) != getattr(self.order, name) for name in fields):
            raise errors.Conflict(f"the process {self.order.job} was started by another order")
        return self

    def listen(self, stdout_from: int, stderr_from: int, cut: asyncio.Event) -> AsyncIterator[bytes]:
        """Return the frames from offsets on, and the exit, as they come; they break off where the host is `cut` off."""
        at = dict(zip(_STREAMS, (stdout_from, stderr_from), strict=True))
        for kind, offset in at.items():
            if offset > len(self._written[kind]):
                raise errors.InvalidRequest(f"{offset} is beyond what the process has written")
        return self._frames(at, cut)

    async def _frames(self, at: dict[frames.Kind, int], cut: asyncio.Event) -> AsyncIterator[bytes]:
        while True:
            coming = self._news.coming
            for kind in _STREAMS:
                while chunk := bytes(self._written[kind][at[kind] : at[kind] + frames.MAX_PAYLOAD]):
                    at[kind] += len(chunk)
                    yield frames.encode(frames.Frame(kind, chunk))
            if (last := self._last()) is not None:
                yield frames.encode(last)
                return
            await _first(coming, self._machine.died, cut)
            if cut.is_set():
                raise ConnectionResetError("the host agent was killed")

    def feed(self, data: bytes, *, close: bool) -> None:
        """Take input. Raises Conflict if nothing reads it."""
        if self._outcome is not None or not self._is_open:
            raise errors.Conflict(f"the input of {self.order.job} is closed")
        self._input.put_nowait(data)
        if close and self._terminal is not None:
            self._input.put_nowait(b"\x04")
        elif close:
            self._is_open = False
            self._input.put_nowait(None)

    def resize(self, size: host.TerminalSize) -> None:
        """Give its terminal another size. Raises InvalidRequest if it has none, Conflict if it has ended."""
        if self._terminal is None:
            raise errors.InvalidRequest(f"the process {self.order.job} has no terminal")
        if self._outcome is not None:
            raise errors.Conflict(f"the terminal of the process {self.order.job} is not there any more")
        self._terminal.size = size

    def signal(self, name: str) -> None:
        """End the command by a signal. Raises InvalidRequest for one that is none, Conflict if it has ended."""
        if name not in _SIGNALS:
            raise errors.InvalidRequest(f"there is no signal {name}")
        if self._outcome is not None or self._signal.done():
            raise errors.Conflict(f"the process {self.order.job} has ended")
        if self.interpreter is not None and name != "SIGKILL":
            self.interpreter.signal(name)
            return
        self._signal.set_result(name)

    async def aclose(self) -> None:
        """End the command, if it runs, without a word."""
        await end_tasks(self._task)

    def _last(self) -> frames.Frame | None:
        if not self._machine.facts.alive or self._machine.died.is_set():
            lost = errors.SandboxLost(self._machine.facts.reason or "the machine was closed")
            return frames.Frame(frames.Kind.ERROR, to_body(lost).model_dump_json().encode())
        if self._outcome is None:
            return None
        return frames.Frame(frames.Kind.EXIT, self._outcome.model_dump_json().encode())

    async def _run(self) -> None:
        command = asyncio.create_task(self._command())
        timer = asyncio.create_task(self._clock.sleep(self.order.timeout_s or 10**9))
        death = asyncio.create_task(self._machine.died.wait())
        held: list[asyncio.Future[Any]] = [command, timer, death, self._signal]
        try:
            await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
            await _first(self._machine.goes, self._machine.died)
        finally:
            self._outcome = self._ended(command, timer)
            self._news.ring()
            await end_tasks(command, timer, death)

    def _ended(self, command: asyncio.Task[int], timer: asyncio.Task[None]) -> host.ExecOutcome:
        duration_ms = round((self._clock.monotonic() - self._began) * 1000)
        if command.done() and not command.cancelled() and command.exception() is None:
            return host.ExecOutcome(exit_code=command.result(), duration_ms=duration_ms)
        name = self._signal.result() if self._signal.done() and not self._signal.cancelled() else "SIGKILL"
        return host.ExecOutcome(
            exit_code=128 + _SIGNALS[name],
            signal=name,
            timed_out=timer.done() and not timer.cancelled() and not command.done(),
            duration_ms=duration_ms,
        )

    async def _command(self) -> int:
        order = self.order
        if order.argv in _CATS and self._is_open:
            return await self._cat()
        if self.interpreter is not None:
            return await self.interpreter.run(self._read, self._machine.env | self._machine.secrets | order.env)
        if self._terminal is not None:
            return await self._terminal.serve(order.argv)
        return await self._shell(order.argv, partial(self._write, frames.Kind.STDOUT))

    def _new_interpreter(self) -> FakeInterpreter:
        out, err = (partial(self._write, kind) for kind in _STREAMS)
        return FakeInterpreter(self.order, out, err)

    def _new_terminal(self, size: host.TerminalSize) -> FakeTerminal:
        return FakeTerminal(size, self._read, partial(self._write, frames.Kind.STDOUT), self._shell)

    async def _read(self) -> bytes:
        return await self._input.get() or b""

    async def _shell(self, words: list[str], out: Out) -> int:
        order = self.order
        call = Call(
            words=words,
            stdin=base64.b64decode(order.stdin or ""),
            env=self._machine.env | self._machine.secrets | order.env,
            cwd=order.cwd or "/root",
            user=order.user or "root",
            out=out,
            err=out if self._terminal is not None else partial(self._write, frames.Kind.STDERR),
        )
        return await Shell(self._machine.files, self._clock, self._machine.counters).run(call)

    async def _cat(self) -> int:
        while (data := await self._input.get()) is not None:
            await self._write(frames.Kind.STDOUT, data)
        return 0

    async def _write(self, kind: frames.Kind, data: bytes) -> None:
        await self._machine.goes.wait()
        self._written[kind] += data
        self._news.ring()


async def _first(*events: asyncio.Event) -> None:
    """Return when one of the events is set."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
