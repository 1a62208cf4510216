"""A client's talk with one command on a WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import structlog
from starlette.types import Message, Receive, Scope, Send
from websockets.frames import CloseCode

from torpor.control.api.dialects import MAX_FRAME_BYTES, Broken, Dialect, Eof, Input, Ping, Said
from torpor.control.api.problems import answer_for
from torpor.control.proxy.websockets import closing
from torpor.control.service import processes
from torpor.control.service.execute import timed_out
from torpor.control.service.plane import Plane
from torpor.control.service.ports import sent_awake
from torpor.control.service.sandboxes import Owned
from torpor.errors import Conflict, InvalidRequest, TorporError
from torpor.kit.shielded import end_tasks
from torpor.wire import duplex, host
from torpor.wire.frames import Kind
from torpor.wire.processes import SendSignal, TerminalSize

_log = structlog.get_logger("torpor.control")

# A client that has the WebSocket has so long to say what is to be run, in seconds.
_ORDER_S = 30.0


@dataclass(frozen=True, slots=True)
class Command:
    """A command that is talked with: from where it is listened to, how it is spoken of, its timeout where it is known.

    `is_killed`: it is to be killed when its client is gone.
    """

    job: host.Job
    since: processes.Offsets
    dialect: Dialect
    is_killed: bool = False
    timeout_s: float | None = None


class Line:
    """A client's WebSocket."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self.request_id: str = scope["state"]["request_id"]
        self._is_accepted = self._is_closed = False

    async def accept(self, process: str | None = None) -> None:
        """Upgrade the connection. Idempotent."""
        if not self._is_accepted:
            self._is_accepted = True
            headers = [] if process is None else [(b"x-process-id", process.encode())]
            await self._send({"type": "websocket.accept", "headers": headers})

    async def first(self) -> object:
        """Return the JSON of a client's first frame. Raises Broken."""
        try:
            async with asyncio.timeout(_ORDER_S):
                message = await self._receive()
        except TimeoutError:
            raise Broken(CloseCode.POLICY_VIOLATION, f"no command was ordered within {_ORDER_S:g} s") from None
        if message["type"] != "websocket.receive":
            raise Broken(message.get("code") or CloseCode.GOING_AWAY, "")
        if (text := message.get("text")) is None:
            raise Broken(CloseCode.POLICY_VIOLATION, "the first frame has to be text: the command as a JSON object")
        if len(text) > MAX_FRAME_BYTES:
            raise Broken(CloseCode.MESSAGE_TOO_BIG, f"a frame has at most {MAX_FRAME_BYTES} bytes")
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise Broken(CloseCode.UNSUPPORTED_DATA, "the first frame is not JSON") from None

    async def receive(self) -> Message | None:
        """Return a client's next frame, None once it has gone, or may not be heard any more."""
        message = await self._receive()
        return message if message["type"] == "websocket.receive" else None

    async def say(self, messages: Iterator[Message]) -> None:
        """Send frames, as the client takes them."""
        for message in messages:
            await self._send(message)

    async def close(self, code: int, reason: str = "") -> None:
        """Close it. Idempotent; a client that has gone is told nothing."""
        if not self._is_closed:
            self._is_closed = True
            with suppress(OSError):
                await self._send(closing(code, reason))

    async def refuse(self, error: TorporError) -> None:
        """Answer with an HTTP status, or where it is too late for that close with the sentence."""
        if self._is_accepted:
            await self.close(CloseCode.INTERNAL_ERROR, error.message)
        else:
            await answer_for(error, self.request_id)(self._scope, self._receive, self._send)


class Session:
    """One client's talk with one command. `has_ended`: the command has."""

    def __init__(self, plane: Plane, owned: Owned, command: Command, line: Line) -> None:
        self._plane, self._owned, self._command, self._line = plane, owned, command, line
        self._dialect = command.dialect
        self._is_terminal = command.job.terminal is not None
        self._typing: _Typing | None = None
        self._input_ended = False
        self._saying = asyncio.Lock()
        self.has_ended = False

    def check(self) -> None:
        """Raise InvalidRequest if what is to be listened to is not kept any more, or not there yet."""
        job, since = self._command.job, self._command.since
        _check("from", since.stdout, job.stdout_start, job.stdout_bytes)
        _check("stderr_from", since.stderr, job.stderr_start, job.stderr_bytes)

    async def run(self) -> None:
        """Talk until one of the two ends. Raises Broken."""
        job, since = self._command.job, self._command.since
        await self._line.accept(job.id)
        await self._say(self._dialect.started(job, since.stdout))
        # A command may say nothing before it is told something, and then it cannot be heard either.
        outwards = asyncio.create_task(self._pass_out())
        inwards = asyncio.create_task(self._pass_in())
        try:
            await asyncio.wait({outwards, inwards}, return_when=asyncio.FIRST_COMPLETED)
            for task in (outwards, inwards):
                if task.done():
                    task.result()
        except TorporError as error:
            await self._fail(error)
        finally:
            await end_tasks(outwards, inwards)
            if self._typing is not None:
                await self._typing.aclose()
        if self.has_ended:
            await self._line.close(CloseCode.NORMAL_CLOSURE)
        else:  # the client has gone, and hears nothing, or it is the guard who has said so
            await self._line.close(CloseCode.POLICY_VIOLATION, "the key is not valid any more")

    async def _pass_out(self) -> None:
        job, since = self._command.job, self._command.since
        async with processes.listen(self._plane, self._owned, job.id, since) as frames:
            async for kind, payload in frames:
                if kind is Kind.EXIT:
                    await self._tell_end(host.ExecOutcome.model_validate_json(payload))
                else:
                    await self._say(self._dialect.output(kind, payload))

    async def _tell_end(self, outcome: host.ExecOutcome) -> None:
        self.has_ended = True
        if outcome.timed_out:
            await self._say(self._dialect.error(timed_out(self._command.timeout_s), self._line.request_id))
        await self._say(self._dialect.exit(outcome))

    async def _say(self, messages: Iterator[Message]) -> None:
        async with self._saying:
            await self._line.say(messages)

    async def _fail(self, error: TorporError) -> None:
        _log.info("terminal broken off", sandbox=self._owned.id, process=self._command.job.id, error=error.message)
        with suppress(OSError):
            await self._say(self._dialect.error(error, self._line.request_id))
        await self._line.close(CloseCode.INTERNAL_ERROR, error.message)

    async def _pass_in(self) -> None:
        """Do what the client says until it has gone. Raises Broken, and TorporError where it cannot be done."""
        while (message := await self._line.receive()) is not None:
            await self._do(self._dialect.hear(message))

    async def _do(self, said: Said) -> None:
        if isinstance(said, Input):
            await self._type(said.data)
        elif isinstance(said, Eof):
            await self._end_input()
        elif isinstance(said, Ping):
            await self._say(self._dialect.pong())
        else:
            try:
                await self._tell(said)
            except Conflict:  # it has just ended, which is told anyway
                return
            except InvalidRequest as error:
                raise Broken(CloseCode.POLICY_VIOLATION, error.message) from None

    async def _tell(self, said: TerminalSize | SendSignal) -> None:
        process = self._command.job.id
        if isinstance(said, SendSignal):
            await processes.send_signal(self._plane, self._owned, process, said.signal)
        else:
            await processes.resize(self._plane, self._owned, process, said)

    async def _type(self, data: bytes) -> None:
        if self._input_ended:
            raise Broken(CloseCode.POLICY_VIOLATION, "the input was ended before")
        if self._typing is None:
            self._typing = _Typing(self._plane, self._owned, self._command.job.id, ends=not self._is_terminal)
        await self._typing.send(data)

    async def _end_input(self) -> None:
        if self._is_terminal:
            with suppress(Conflict):
                await processes.feed(self._plane, self._owned, self._command.job.id, b"", close=True)
        elif not self._input_ended:
            await self._type(b"")
            self._input_ended = True
            if self._typing is not None:
                self._typing.end()


class _Typing:
    """A client's input on its way to a command, as one long call. What the command takes no more is thrown away."""

    def __init__(self, plane: Plane, owned: Owned, process: str, *, ends: bool) -> None:
        self._plane, self._owned, self._process = plane, owned, process
        self._outgoing = duplex.Outgoing()
        feeding = processes.feed_as_it_comes(plane, owned, process, self._outgoing.pieces, close=ends)
        self._task = asyncio.create_task(feeding)
        self._task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[int]) -> None:
        self._outgoing.close()
        _ = task.cancelled() or task.exception()  # who types on is told why; who does not has nothing to be told

    async def send(self, data: bytes) -> None:
        """Return when the bytes are on their way into the guest, or the command has ended and takes no more.

        Raises Broken for a command that runs and takes no input, and what else keeps it from being given it.
        """
        if not data or await sent_awake(self._plane, self._owned, self._outgoing.send(data)):
            return
        await asyncio.wait({self._task})
        try:
            self._task.result()
        except Conflict as error:
            if (await processes.show_process(self._plane, self._owned, self._process)).outcome is None:
                raise Broken(CloseCode.POLICY_VIOLATION, error.message) from None

    def end(self) -> None:
        """No more comes."""
        self._outgoing.end()

    async def aclose(self) -> None:
        """Give up; what was sent stays sent."""
        await end_tasks(self._task)


def _check(name: str, at: int, start: int, end: int) -> None:
    if not start <= at <= end:
        raise InvalidRequest(f"{name} is {at}, and what is kept of the process's output is from {start} to {end}")
