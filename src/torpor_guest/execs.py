"""Commands: `exec`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from torpor_guest import protocol, spawn
from torpor_guest.accounts import Accounts
from torpor_guest.cgroups import Cgroup, CgroupTree
from torpor_guest.connection import Stream
from torpor_guest.loop import Loop, Timer
from torpor_guest.pipes import InputPipe, OutputPipe
from torpor_guest.reaper import Reaper
from torpor_guest.refusal import Refusal
from torpor_guest.requests import Request
from torpor_guest.sessions import Session


class Execs:
    """Starts commands. `tree` is None where there are no control groups; then a command is what its session holds.

    `marks` are variables that every command gets (under what the request gives): the sandbox's own, and its id.
    """

    def __init__(self, loop: Loop, reaper: Reaper, accounts: Accounts, tree: CgroupTree | None) -> None:
        self.marks: dict[bytes, bytes] = {}
        self._loop, self._reaper, self._accounts, self._tree = loop, reaper, accounts, tree
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)

    def exec(self, stream: Stream, request: Request) -> None:
        """Serve one `exec`. Raises Refusal if the request makes no sense; a program that is not there is a result."""
        self.check_running()
        account = self._accounts.find(request.optional_text("user"))
        cwd = request.path("cwd") if request.optional_text("cwd") is not None else None
        order = spawn.Order(
            request.words("argv"),
            spawn.base_environment(account) | self.marks | request.environment("env"),
            spawn.working_folder(cwd, account),
            account,
        )
        timeout_s, with_input = request.optional_seconds("timeout_s"), request.flag("stdin")
        try:
            _Command(self, stream, timeout_s, with_input=with_input).start(order)
        except OSError as error:  # no descriptor, process or control group to be had
            reason = os.strerror(error.errno or 0).lower()
            raise Refusal("busy", f"the sandbox has no room for another command: {reason}") from error

    def freezing(self) -> bool:
        """Tell whether everything of the user's is stopped or about to: then nothing can be started.

        The agent passes through the group it starts a command in, so it would stop itself.
        """
        return self._tree is not None and self._tree.freezing()

    def check_running(self) -> None:
        """Raise Refusal if nothing can be started now."""
        if self.freezing():
            raise Refusal("busy", "the sandbox is being frozen; nothing can be started in it now")

    def order_of_root(self, argv: list[bytes], env: Mapping[bytes, bytes]) -> spawn.Order:
        """Return how root runs a program in the root folder, with `env` beside what every command gets."""
        root = self._accounts.find(None)
        return spawn.Order(argv, spawn.base_environment(root) | self.marks | dict(env), b"/", root)

    def start(self, order: spawn.Order, streams: spawn.Streams) -> tuple[int, Cgroup | Session]:
        """Start a process and return its id and what it can be killed by."""
        if self._tree is None:
            pid = spawn.start(order, streams)
            return pid, Session(pid)
        group = self._tree.take()
        try:
            return self._tree.start_in(group, lambda: spawn.start(order, streams)), group
        except BaseException:
            self._tree.give_back(group)
            raise

    def output(self, stream: Stream, sub: int, on_done: Callable[[], None]) -> OutputPipe:
        """Return a pipe for a command's output."""
        return OutputPipe(self._loop, self._null, stream, sub, on_done)

    def input(self, stream: Stream) -> InputPipe:
        """Return a pipe for a command's input."""
        return InputPipe(self._loop, stream)

    @property
    def null(self) -> int:
        """An open /dev/null."""
        return self._null

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call once after `seconds`."""
        return self._loop.after(seconds, call)

    def expect(self, pid: int, ended: Callable[[int], None]) -> None:
        """Call `ended` once the process has ended."""
        self._reaper.expect(pid, ended)

    def retire(self, group: Cgroup | Session) -> None:
        """Remove a command's group as soon as it is empty, and make another ahead; after the answer is on its way."""

        def work() -> bool:
            if isinstance(group, Cgroup):
                group.remove_when_empty(self._loop)
            if self._tree is not None:
                self._tree.prepare()
            return False

        self._loop.step(work)


class _Command:
    """One command under way. It outlives its stream if the host goes away, and its output is then thrown away."""

    def __init__(self, execs: Execs, stream: Stream, timeout_s: float | None, *, with_input: bool) -> None:
        self._execs, self._stream, self._timeout_s = execs, stream, timeout_s
        self._outputs = [execs.output(stream, sub, self._settle) for sub in (protocol.OUTPUT, protocol.ERRORS)]
        self._input = execs.input(stream) if with_input else None
        self._began = time.monotonic()
        self._timer: Timer | None = None
        self._timed_out = False
        self._pid = 0
        self._group: Cgroup | Session
        self._outcome: dict[str, object] | None = None

    def start(self, order: spawn.Order) -> None:
        """Start the process. Raises Refusal; a program that cannot be run closes the stream with a result."""
        stdin = self._execs.null if self._input is None else self._input.child_end
        streams = spawn.Streams(stdin, self._outputs[0].child_end, self._outputs[1].child_end)
        try:
            self._pid, self._group = self._execs.start(order, streams)
        except BaseException as error:
            self._abandon()
            if not isinstance(error, spawn.CannotRun):
                raise
            self._answer_cannot_run(order.argv[0], error)
            return
        for pipe in self._pipes():
            pipe.begin()
        self._stream.operation = self
        self._execs.expect(self._pid, self._ended)
        if self._timeout_s is not None:
            self._timer = self._execs.after(self._timeout_s, self._run_out)

    def _pipes(self) -> list[InputPipe | OutputPipe]:
        return [*self._outputs, *([self._input] if self._input else [])]

    def _abandon(self) -> None:
        for pipe in self._pipes():
            pipe.abandon()

    def _answer_cannot_run(self, name: bytes, error: spawn.CannotRun) -> None:
        self._stream.send(protocol.ERRORS, name[:4096] + b": " + error.reason.encode() + b"\n")
        self._stream.result(_outcome(error.code, None) | {"duration_ms": self._milliseconds()})

    def _milliseconds(self) -> int:
        return round((time.monotonic() - self._began) * 1000)

    def _run_out(self) -> None:
        self._timed_out = True
        self._kill()

    def _kill(self) -> None:
        kill(self._group, self._pid)

    def _ended(self, status: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._outcome = _outcome_of(status) | {
            "oom_killed": self._group.oom_killed(),
            "timed_out": self._timed_out,
            "duration_ms": self._milliseconds(),
        }
        if self._input is not None:
            self._input.close()
        for pipe in self._outputs:
            pipe.command_ended()
        self._settle()
        self._execs.retire(self._group)

    def _settle(self) -> None:
        if self._outcome is not None and all(pipe.done for pipe in self._outputs):
            self._stream.result(dict(self._outcome))

    def on_data(self, payload: memoryview) -> None:
        if self._input is None:
            self._stream.consumed(len(payload))
        else:
            self._input.take(payload)

    def on_end(self) -> None:
        if self._input is not None:
            self._input.end()

    def on_cancel(self) -> None:
        for pipe in self._outputs:
            pipe.discard()
        if self._outcome is None:
            self._kill()

    def on_drop(self) -> None:
        if self._input is not None:
            self._input.end()
        for pipe in self._outputs:
            pipe.discard()


def kill(group: Cgroup | Session, pid: int) -> None:
    """Kill a command that has not ended yet, also where root has led it out of its group."""
    try:
        group.kill()
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own


def _outcome_of(status: int) -> dict[str, object]:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return _outcome(code, None)
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"SIG{-code}"  # a real-time signal
    return _outcome(128 - code, name)


def _outcome(exit_code: int, signal_name: str | None) -> dict[str, object]:
    return {"exit_code": exit_code, "signal": signal_name, "oom_killed": False, "timed_out": False}
