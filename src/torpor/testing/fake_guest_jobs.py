"""The jobs of a guest that exists in memory only: commands with an id, which are kept in what it saves."""

from __future__ import annotations

import asyncio
import base64
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torpor.errors import Busy, Conflict, InvalidRequest, NotFound
from torpor.kit.shielded import wait_ended
from torpor.testing.fake_guest_call import Request
from torpor.testing.fake_terminal import FakeTerminal, Out
from torpor.testing.guest import Call, Killed, Shell
from torpor.wire.host import TerminalSize
from torpor_guest import protocol

if TYPE_CHECKING:
    from torpor.testing.fake_guest import FakeGuest

# Takes a sub-channel and what is written there.
Writing = Callable[[int, bytes], Awaitable[None]]

# What makes an order another one.
_ORDER = ("op", "argv", "env", "cwd", "user", "timeout_s", "terminal", "stdin", "stdin_digest", "open", "hangup_s")
_IGNORED = frozenset({"SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH"})
_STREAMS = (protocol.OUTPUT, protocol.ERRORS)
_KILLED: Request = {"exit_code": 137, "signal": "SIGKILL", "oom_killed": False, "timed_out": False}


@dataclass
class Job:
    """One job, as a guest's memory holds it: while it runs it is begun again from this, and looks as if it went on.

    `written` is all that it wrote, by stream, `stdin` all the input that it got, and `counted` what the command `count`
    has told it. Of all commands only `cat` reads its input, and then it is begun once that is complete; a terminal
    reads it as it comes. `size`: the terminal's rows and columns.
    """

    request: Request
    started_at: float
    written: list[bytes] = field(default_factory=lambda: [b"", b"", b""])
    stdin: bytes = b""
    stdin_closed: bool = False
    counted: list[int] = field(default_factory=list)
    size: Request | None = None
    outcome: Request | None = None
    # Not saved: who runs it, and whom news of it wake.
    task: asyncio.Task[None] | None = None
    killed_by: str | None = None
    feeder: object | None = None
    terminal: FakeTerminal | None = None
    listeners: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def dump(self) -> Request:
        """Return it as JSON values."""
        written = [base64.b64encode(data).decode() for data in self.written]
        kept = ("request", "started_at", "stdin_closed", "counted", "size", "outcome")
        stdin = base64.b64encode(self.stdin).decode()
        return {name: getattr(self, name) for name in kept} | {"written": written, "stdin": stdin}

    @classmethod
    def load(cls, values: Request) -> Job:
        """Return what was dumped."""
        written = [base64.b64decode(text) for text in values["written"]]
        return cls(**{**values, "written": written, "stdin": base64.b64decode(values["stdin"])})

    def described(self) -> Request:
        """Return what is told of it."""
        argv, (_, stdout, stderr) = self.request["argv"], self.written
        return {
            "id": self.request["job"],
            "command": argv[2] if argv[:2] == ["/bin/sh", "-c"] else " ".join(argv or ["(login shell)"]),
            "user": self.request["user"],
            "pid": 2 if self.outcome is None else None,
            "waited_for": self.request["op"] == "exec",
            "started_at": self.started_at,
            "stdout_bytes": len(stdout),
            "stderr_bytes": len(stderr),
            "stdout_start": 0,
            "stderr_start": 0,
            "terminal": self.size,
            "outcome": self.outcome,
        }

    def check_offsets(self, request: Request) -> list[int]:
        """Return from where on its output is asked for, by stream. Raises InvalidRequest if it has written less."""
        starts = [0, request.get("stdout_from", 0), request.get("stderr_from", 0)]
        for name, sub in (("stdout_from", protocol.OUTPUT), ("stderr_from", protocol.ERRORS)):
            if starts[sub] > len(self.written[sub]):
                raise InvalidRequest(f"{name} is {starts[sub]}, but the command has written less")
        return starts

    def result(self) -> Request:
        """Return how it ended, and how much it had written by then."""
        counts = {"stdout_bytes": len(self.written[1]), "stderr_bytes": len(self.written[2])}
        return {**(self.outcome or {}), **counts}

    def feed(self, at: int, data: bytes) -> None:
        """Take input that belongs at an offset; what came before already is passed over."""
        if self.outcome is None and not self.stdin_closed:
            self.stdin += data[max(len(self.stdin) - at, 0) :]

            self.tell()

    def close_stdin(self) -> None:
        """No more input comes; on a terminal it is typed."""
        if self.size is not None:
            self.feed(len(self.stdin), b"\x04")
            return
        self.stdin_closed = True
        self.tell()

    def resize(self, size: Request) -> None:
        """Give its terminal another size. Raises InvalidRequest or Conflict."""
        if self.size is None:
            raise InvalidRequest(f"the process {self.request['job']} has no terminal")
        if self.outcome is not None:
            raise Conflict(f"the terminal of the process {self.request['job']} is not there any more")
        self.size = size
        if self.terminal is not None:
            self.terminal.size = TerminalSize.model_validate(size)

    def takes_input(self) -> bool:
        """Tell whether input may be sent."""
        is_open = self.size is not None or self.request.get("open", False)
        return is_open and not self.stdin_closed and self.outcome is None

    def signal(self, name: str) -> None:
        """Take a signal. Raises InvalidRequest or Conflict."""
        if name not in signal.Signals.__members__:
            raise InvalidRequest(f"there is no signal {name!r}")
        if self.outcome is not None:
            raise Conflict(f"the process {self.request['job']} has ended")
        if name not in _IGNORED and self.task is not None:
            self.killed_by = name
            # Later, so that one that has not begun yet does begin, and ends by it.
            asyncio.get_running_loop().call_soon(self.task.cancel)

    def tell(self) -> None:
        """Wake everybody who waits for news."""
        self._news.set()
        self._news = asyncio.Event()

    async def news(self) -> None:
        """Return when there is something new."""
        await self._news.wait()


class _Shell(Shell):
    """What a job counted before it was begun again it is told again, and does not count twice."""

    def __init__(self, guest: FakeGuest, job: Job) -> None:
        super().__init__(guest.files, guest.clock, guest.counters)
        self._job, self._told = job, iter(list(job.counted))

    def count(self, name: str) -> int:
        if (before := next(self._told, None)) is not None:
            return before
        value = super().count(name)
        self._job.counted.append(value)
        return value


@dataclass
class Jobs:
    """All jobs of a guest. They run while it is served."""

    guest: FakeGuest
    known: dict[str, Job] = field(default_factory=dict)
    hangups: list[asyncio.Task[None]] = field(default_factory=list)

    def begin_all(self) -> None:
        """Let those run that have not ended."""
        for job in self.known.values():
            if job.outcome is None:
                self._begin(job)

    async def stop_all(self) -> None:
        """Let none run any more."""
        for hangup in self.hangups:
            hangup.cancel()
            await wait_ended(hangup)
        self.hangups.clear()
        for job in self.known.values():
            if job.task is not None:
                job.task.cancel()
                await wait_ended(job.task)

    def find(self, request: Request) -> Job:
        """Return a job. Raises NotFound."""
        job = self.known.get(request["job"])
        if job is None:
            raise NotFound(f"there is no process {request['job']}")
        return job

    def find_or_start(self, request: Request) -> Job:
        """Return the job of an order. Raises Conflict, Busy, NotFound and InvalidRequest as a real agent does."""
        name = request["job"]
        job = self.known.get(name)
        if job is not None:
            if any(job.request.get(field) != request.get(field) for field in _ORDER):
                raise Conflict(f"the process {name} was started by another order")
            return job
        if request.get("stdout_from") or request.get("stderr_from"):
            raise NotFound(f"there is no process {name}")
        if self.guest.frozen:
            raise Busy("the sandbox is being frozen; nothing can be started in it now")
        check_folder(self.guest, request)
        size = request.get("terminal")
        has_input = request["stdin"] or request.get("open", False) or size is not None
        began_at = self.guest.clock.now().timestamp()
        job = self.known[name] = Job(request, began_at, stdin_closed=not has_input, size=size)
        self._begin(job)
        self.heard(job, 0)
        return job

    def heard(self, job: Job, change: int) -> None:
        """Somebody begins to listen to a job (1), or listens no more (-1): the last may be the end of it."""
        job.listeners += change
        after_s = job.request.get("hangup_s")
        if after_s is not None and not job.listeners and job.outcome is None:
            self.hangups.append(asyncio.create_task(self._hang_up(job, after_s)))

    async def _hang_up(self, job: Job, after_s: float) -> None:
        await self.guest.clock.sleep(after_s)
        if not job.listeners and job.outcome is None:
            job.signal("SIGHUP" if job.size is not None else "SIGKILL")

    def _begin(self, job: Job) -> None:
        job.task = asyncio.create_task(self._run(job))

    async def _run(self, job: Job) -> None:
        began = self.guest.clock.monotonic()
        repeated = [len(written) for written in job.written]

        async def write(sub: int, data: bytes) -> None:
            again = min(repeated[sub], len(data))
            repeated[sub] -= again
            await self.guest.wait_thawed()
            job.written[sub] += data[again:]
            job.tell()

        try:
            outcome = await self._outcome(job, write)
        except asyncio.CancelledError:
            if job.killed_by is None:  # its guest is served no more
                raise
            name = job.killed_by
            outcome = _KILLED | {"exit_code": 128 + signal.Signals[name], "signal": name}
        job.outcome = outcome | {"duration_ms": round((self.guest.clock.monotonic() - began) * 1000)}
        job.tell()

    async def _outcome(self, job: Job, write: Writing) -> Request:
        await self.guest.wait_thawed()
        if job.size is not None:
            return await self._on_terminal(job, write)
        while not job.stdin_closed and any("cat" in word for word in job.request["argv"]):
            await job.news()
        call = call_of(self.guest, job.request, job.stdin, write)
        outcome = await outcome_of(_Shell(self.guest, job), call, job.request["timeout_s"], self.guest)
        await self.guest.wait_thawed()
        return outcome

    async def _on_terminal(self, job: Job, write: Writing) -> Request:
        taken = 0

        async def read() -> bytes:
            nonlocal taken
            while len(job.stdin) == taken:
                await job.news()
            data, taken = job.stdin[taken:], len(job.stdin)
            return data

        async def run(words: list[str], out: Out) -> int:
            call = call_of(self.guest, {**job.request, "argv": words}, b"", lambda _, data: out(data))
            return await _Shell(self.guest, job).run(call)

        size = TerminalSize.model_validate(job.size)
        job.terminal = FakeTerminal(size, read, lambda data: write(protocol.OUTPUT, data), run)
        return _KILLED | {"exit_code": await job.terminal.serve(job.request["argv"] or []), "signal": None}


def check_folder(guest: FakeGuest, request: Request) -> None:
    """Raise InvalidRequest unless there is the folder that a command is to run in."""
    if request["cwd"] is not None and guest.files.nodes.get(request["cwd"]) is None:
        raise InvalidRequest(f"cwd: there is no folder {request['cwd']} to run in")


def call_of(guest: FakeGuest, request: Request, stdin: bytes, write: Writing) -> Call:
    """Return a command as it runs; `write` takes what it writes."""
    return Call(
        words=request["argv"],
        stdin=stdin,
        env={"HOME": "/root", "USER": request["user"] or "root", **_variables(guest), **request["env"]},
        cwd=request["cwd"] or "/root",
        user=request["user"] or "root",
        out=lambda data: write(protocol.OUTPUT, data),
        err=lambda data: write(protocol.ERRORS, data),
    )


def _variables(guest: FakeGuest) -> dict[str, str]:
    return {**guest.defaults.get("env", {}), **guest.env, **guest.secrets}


async def outcome_of(shell: Shell, call: Call, timeout_s: float | None, guest: FakeGuest) -> Request:
    """Run a command to its end, or to its timeout, and return how it ended."""
    command = asyncio.create_task(shell.run(call))
    timer = asyncio.create_task(guest.clock.sleep(10**9 if timeout_s is None else timeout_s))
    try:
        await asyncio.wait([command, timer], return_when=asyncio.FIRST_COMPLETED)
        if not command.done():
            return _KILLED | {"timed_out": True}
        try:
            return _KILLED | {"exit_code": command.result(), "signal": None}
        except Killed:
            return dict(_KILLED)
    finally:
        for task in (command, timer):
            task.cancel()
            await wait_ended(task)
