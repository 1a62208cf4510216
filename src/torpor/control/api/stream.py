"""Server-sent events: what goes on for as long as somebody listens, and the output of a command."""

from __future__ import annotations

import asyncio
import base64
import codecs
import json
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from starlette.types import Send

from torpor.control.api.answers import BEAT_S, Watched, beating, part, process_header
from torpor.control.service.execute import timed_out
from torpor.errors import TorporError
from torpor.kit.clock import Clock
from torpor.kit.race import Overtaken, race
from torpor.wire import host
from torpor.wire.errors import to_body
from torpor.wire.frames import Frame, Kind
from torpor.wire.public import StreamExit

MEDIA_TYPE = "text/event-stream; charset=utf-8"
# One event, as those see it who read the stream event by event.
_EVENT = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "enum": ["started", "stdout", "stderr", "exit", "error"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["event", "data"],
}
# How the description of the API tells of such a stream.
STREAMED: dict[str, Any] = {
    "description": (
        "Events `stdout` and `stderr` {chunk}, then `exit` (StreamExit) or `error` (ErrorBody); comments are beats. A "
        "command that has an id is told by `started` {process_id} once it is sure to be in the guest, before all of "
        "these."
    ),
    "content": {"text/event-stream": {"schema": _EVENT}},
}
# What says that the line holds.
BEAT = b": beat\n\n"
# A host may answer only with the command's first output. Refusals come sooner than this, so that they have a status.
START_S = 1.0


@dataclass(frozen=True, slots=True)
class Listened:
    """The command that is listened to: its `job`, where it has an id, its timeout, where that is known here.

    `encoding`: how its output is sent. `is_there`: asks whether the guest has it; where it is given, `started` is told.
    """

    encoding: Literal["text", "base64"]
    job: str | None = None
    timeout_s: float | None = None
    is_there: Callable[[], Coroutine[Any, Any, bool]] | None = None


class Following(Watched):
    """Events as they come, a comment in every BEAT_S, and `last` behind them; ends with them, or with its client."""

    def __init__(self, clock: Clock, events: AsyncGenerator[bytes, None], last: bytes = b"") -> None:
        super().__init__()
        self._clock, self._events, self._last = clock, events, last

    async def work(self, send: Send) -> None:
        await self.begin(send, MEDIA_TYPE)
        await send(part(BEAT))
        await beating(self._pass_on(send), self._beat(send))
        await send(part(self._last, more=False))

    async def _pass_on(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for told in events:
                await send(part(told))

    async def _beat(self, send: Send) -> None:
        while True:
            await self._clock.sleep(BEAT_S)
            await send(part(BEAT))


class Told(Watched):
    """Events of something that runs, then `exit` or `error`, and a comment in every BEAT_S of silence.

    It begins with the first event, or at START_S. A stream that ends without either of the two was broken off, and says
    nothing of the end of what runs.
    """

    def __init__(self, clock: Clock, request_id: str) -> None:
        super().__init__()
        self._clock = clock
        self._request_id = request_id
        self._last_sent = 0.0
        self._starting = asyncio.Lock()

    async def work(self, send: Send) -> None:
        try:
            await beating(self.run(send), self._beat(send))
        except TorporError as error:
            if not self._begun:
                raise
            await self.flush(send)
            await self.give(send, event("error", to_body(error, self._request_id).model_dump()))
        await send(part(b"", more=False))

    @abstractmethod
    async def run(self, send: Send) -> None:
        """Send the events, `exit` last. A TorporError becomes `error`, or the answer where nothing was sent yet."""

    async def flush(self, send: Send) -> None:
        """Send what was held back."""

    async def look(self, send: Send) -> None:
        """Send what is to be told beside the events; called at START_S, and with each beat."""

    async def start(self, send: Send, *, beat: bool = True) -> None:
        """Begin, if that was not done, with a beat unless an event follows at once."""
        async with self._starting:
            if not self._begun:
                await self.begin(send, MEDIA_TYPE)
                if beat:
                    await self.give(send, BEAT)

    async def give(self, send: Send, data: bytes) -> None:
        """Send an event."""
        self._last_sent = self._clock.monotonic()
        await send(part(data))

    async def _beat(self, send: Send) -> None:
        await self._clock.sleep(START_S)
        await self.start(send)
        await self.look(send)
        while True:
            silent_for = self._clock.monotonic() - self._last_sent
            if silent_for >= BEAT_S:
                await self.give(send, BEAT)
                await self.look(send)
            else:
                await self._clock.sleep(BEAT_S - silent_for)


class Events(Told):
    """`stdout` and `stderr` as they come, then `exit` or `error`.

    Where `started` is to be told, it is told before the first of these, or as soon as the guest is known to have the
    command; that is asked at START_S, and with each beat.
    """

    def __init__(
        self,
        clock: Clock,
        frames: AbstractAsyncContextManager[AsyncIterator[Frame]],
        command: Listened,
        request_id: str,
    ) -> None:
        super().__init__(clock, request_id)
        if command.job is not None:
            self.more_headers = [process_header(command.job)]
        self._frames = frames
        self._command = command
        self._has_told_started = command.is_there is None
        self._writers = {kind: writer_for(command.encoding) for kind in (Kind.STDOUT, Kind.STDERR)}

    async def run(self, send: Send) -> None:
        async with self._frames as frames:
            await self.start(send)
            await self._pass_on(frames, send)

    async def _tell_started(self, send: Send) -> None:
        async with self._starting:
            if not self._has_told_started:
                await self.give(send, event("started", {"process_id": self._command.job}))
                self._has_told_started = True

    async def look(self, send: Send) -> None:
        """Tell that the command is there if it is. A guest that does not say so soon keeps no beat waiting."""
        is_there = self._command.is_there
        if is_there is None or self._has_told_started:
            return
        with suppress(Overtaken):
            if await race(is_there(), self._clock.sleep(BEAT_S)):
                await self._tell_started(send)

    async def _pass_on(self, frames: AsyncIterator[Frame], send: Send) -> None:
        async for kind, payload in frames:
            if not self._has_told_started:
                await self._tell_started(send)
            if kind is Kind.EXIT:
                await self._exit(host.ExecOutcome.model_validate_json(payload), send)
            elif chunk := self._writers[kind].feed(payload):
                await self.give(send, event(kind.name.lower(), {"chunk": chunk}))

    async def _exit(self, outcome: host.ExecOutcome, send: Send) -> None:
        if outcome.timed_out:
            raise timed_out(self._command.timeout_s)
        await self.flush(send)
        said = StreamExit(
            exit_code=outcome.exit_code,
            duration_ms=outcome.duration_ms,
            signal=outcome.signal,
            oom_killed=outcome.oom_killed,
        )
        await self.give(send, event("exit", said.model_dump()))

    async def flush(self, send: Send) -> None:
        for kind, writer in self._writers.items():
            if rest := writer.rest():
                await self.give(send, event(kind.name.lower(), {"chunk": rest}))


class Writer(Protocol):
    """Turns one stream's bytes into the text of chunks."""

    def feed(self, data: bytes) -> str:
        """Return what can be said after these bytes; "" if nothing yet."""

    def rest(self) -> str:
        """Return what was held back, at the end."""


class TextWriter:
    """UTF-8, a character never split, what cannot be decoded replaced."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        return self._decoder.decode(data)

    def rest(self) -> str:
        return self._decoder.decode(b"", final=True)


class Base64Writer:
    """The bytes exactly, each chunk base64 of its own."""

    def feed(self, data: bytes) -> str:
        return base64.b64encode(data).decode()

    def rest(self) -> str:
        return ""


def writer_for(encoding: Literal["text", "base64"]) -> Writer:
    """Return a fresh writer for one stream."""
    return TextWriter() if encoding == "text" else Base64Writer()


def event(name: str, data: dict[str, Any]) -> bytes:
    """Return one event: its data is a JSON object in ASCII on one line."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode("ascii")
