"""Commands in a guest: run and wait for, or started under an id and come back to."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any

from torpor.errors import InvalidRequest, OutcomeUnknown
from torpor.guest.answers import Moved, read
from torpor.guest.asking import Asking
from torpor.guest.calls import Call
from torpor.guest.told import frames_of, job_of, jobs_of
from torpor.kit.beside import beside
from torpor.model.ids import JobId
from torpor.wire.frames import Frame, Kind
from torpor.wire.host import ExecOrder, ExecOutcome, Job, JobOrder, TerminalSize


class Commands(Asking):
    """What can be asked of a guest's agent about commands. Methods may be called at the same time.

    A command with an id is a *job* of the guest: it keeps what it writes, outlives whoever listens, a hibernation and
    this host agent, and is found again by its id.
    """

    async def ping(self) -> None:
        """Return when the agent has answered."""
        await self._ask({"op": "ping"})

    async def run(self, order: ExecOrder) -> ExecOutcome:
        """Run a command to its end and return how it ended; what it writes is dropped. Raises as `exec` does."""
        async with self.exec(order) as frames:
            async for kind, payload in frames:
                if kind is Kind.EXIT:
                    return ExecOutcome.model_validate_json(payload)
        raise OutcomeUnknown("the guest's agent did not say how the command ended")

    @asynccontextmanager
    async def exec(self, order: ExecOrder) -> AsyncIterator[AsyncIterator[Frame]]:
        """Run a command: yields its frames, STDOUT and STDERR as they come and last one EXIT with an ExecOutcome.

        Without `order.job`, leaving the block before EXIT kills the command with all its children, and waits (for a
        bounded time) until it is gone.

        With it, the command is started, or found if the same order has started it before, and the frames tell its
        output from `stdout_from` and `stderr_from` on. Leaving the block leaves it alone. Raises Conflict if the id is
        another order's, InvalidRequest if there is no output there (any more).
        """
        data = _stdin_of(order)
        request = _request_of("exec", order) | _input_of(order, data)
        if order.job is not None and (order.stdout_from or order.stderr_from):
            request |= {"stdout_from": order.stdout_from, "stderr_from": order.stderr_from}
        async with self._call(request) as call, _feeding(call, data):
            frames = frames_of(call, order.stdout_from, order.stderr_from)
            async with aclosing(frames):
                yield frames

    async def start(self, order: JobOrder) -> Job:
        """Start the job `order.job`, or find it if the same order has started it before.

        Its `stdin` is passed on first; of one that is long the command has to read the most before this returns.
        Raises Conflict if the id is another order's.
        """
        data = _stdin_of(order)
        request = _request_of("start", order) | _input_of(order, data) | {"open": order.open_stdin}
        if order.hangup_s is not None:
            request["hangup_s"] = order.hangup_s
        async with self._call(request) as call, _feeding(call, data):
            return job_of(await call.result(), order.job)

    @asynccontextmanager
    async def attach(
        self, job: JobId, stdout_from: int = 0, stderr_from: int = 0
    ) -> AsyncIterator[AsyncIterator[Frame]]:
        """Listen to a job: yields frames as `exec` does, of its output from two offsets in bytes on.

        Leaving the block leaves the job alone. Raises NotFound if there is none of that id, InvalidRequest if there is
        no output at these offsets (any more).
        """
        request = {"op": "attach", "job": job, "stdout_from": stdout_from, "stderr_from": stderr_from}
        async with self._call(request) as call:
            frames = frames_of(call, stdout_from, stderr_from)
            async with aclosing(frames):
                yield frames

    async def feed(self, job: JobId, chunks: AsyncIterable[bytes], *, close: bool = False) -> int:
        """Pass bytes to a job's input as it reads them, and return how many it took; fewer if it ended meanwhile.

        With `close` it finds the end of its input after them. If `chunks` raises, what came before stays passed. Raises
        NotFound, or Conflict if its input is closed, it has ended, or somebody else is passing it input. On a terminal
        several may do that, and `close` types its character for the end of a file.
        """
        async with self._call({"op": "input", "job": job, "close": close}) as call:
            sent = 0
            async for chunk in chunks:
                sent += len(chunk)
                if not await call.send(chunk):
                    break
            call.end_input()
            taken = read(Moved, await call.result()).bytes
            if taken > sent:
                raise OutcomeUnknown(f"the guest says that {job} took more input than it was sent")
            return taken

    async def resize(self, job: JobId, size: TerminalSize) -> None:
        """Give a job's terminal another size, of which its programs hear.

        Raises NotFound, InvalidRequest if it has none, Conflict if it is not there any more.
        """
        await self._ask({"op": "resize", "job": job, "rows": size.rows, "cols": size.cols})

    async def signal(self, job: JobId, name: str) -> None:
        """Send a signal, such as "SIGINT", to a job's process group, or what is in the foreground of its terminal;
        SIGKILL kills all its processes.

        Raises NotFound, Conflict if it has ended, or InvalidRequest if there is no such signal.
        """
        await self._ask({"op": "signal", "job": job, "signal": name})

    async def jobs(self) -> list[Job]:
        """Return the commands that run, and those jobs that have ended and are remembered, oldest first.

        A command without a job's id is among them while it runs, under an id of the guest's own.
        """
        async with self._call({"op": "jobs"}) as call:
            return await jobs_of(call)

    async def job(self, job: JobId) -> Job:
        """Describe a job. Raises NotFound."""
        return job_of(await self._ask({"op": "job", "job": job}), job)


def _request_of(op: str, order: ExecOrder) -> dict[str, Any]:
    request: dict[str, Any] = {
        "op": op,
        "job": order.job,
        "argv": order.argv,
        "env": order.env,
        "cwd": order.cwd,
        "user": order.user,
        "timeout_s": order.timeout_s,
    }
    return request if order.terminal is None else request | {"terminal": order.terminal.model_dump()}


def _stdin_of(order: ExecOrder) -> bytes:
    try:
        return base64.b64decode(order.stdin or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest("stdin is not base64") from error


def _input_of(order: ExecOrder, data: bytes) -> dict[str, Any]:
    """Return what a request says of its input; for a job also what tells it from any other, which is not sent yet."""
    said: dict[str, Any] = {"stdin": bool(data)}
    return said if order.job is None or not data else said | {"stdin_digest": hashlib.sha256(data).hexdigest()}


def _feeding(call: Call, data: bytes) -> AbstractAsyncContextManager[None]:
    """Send a command its input while a block lasts, if it has any."""
    return beside(*([_feed(call, data)] if data else []))


async def _feed(call: Call, data: bytes) -> None:
    """Send a command its input; one that ends without reading it is no error."""
    if await call.send(data):
        call.end_input()
