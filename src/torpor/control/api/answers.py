"""Answers that are made while they are sent."""

from __future__ import annotations

import asyncio
import re
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import structlog
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from torpor.control.api.problems import answer_for
from torpor.control.hosts import ByteSource
from torpor.errors import ExecTimeout, TorporError
from torpor.kit.beside import beside
from torpor.kit.clock import Clock
from torpor.kit.shielded import end_tasks
from torpor.wire.public import ExecAnswer

_log = structlog.get_logger("torpor.control")

# Some clients stop reading after 30 s of silence, so a long answer begins early and is kept alive with spaces. A client
# that is more patient says so with `Prefer: wait=SECONDS` (RFC 7240), and so hears of an error that comes late.
PATIENCE_S = 10.0
_MOST_PATIENCE_S = 3600
_WAIT = re.compile(rb"(?:^|[,;\s])wait=(\d{1,6})(?:$|[,;\s])")
BEAT_S = 5.0
_JSON = "application/json"


class Watched(Response):
    """An answer whose `work` is over when the call returns, and is cancelled when the client disconnects.

    Where it `endures` the client, the work is done to its end all the same, and only a stop of the server cancels it.
    """

    endures = False

    def __init__(self) -> None:
        self.background = None
        self.more_headers: list[tuple[bytes, bytes]] = []
        self._begun = False

    @abstractmethod
    async def work(self, send: Send) -> None:
        """Send the answer. A TorporError raised before `begin` becomes an error's answer; after it, a broken answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        working = asyncio.create_task(self.work(send))
        gone = asyncio.create_task(_wait_gone(receive))
        try:
            await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
            is_gone = not working.done()
            if self.endures:
                await asyncio.wait([working])
        finally:
            await end_tasks(working, gone)
        if is_gone and _is_expected(working):
            _log.info("client gone", request_id=scope["state"]["request_id"], path=scope["path"])
            return
        await self._conclude(working, scope, receive, send)

    async def begin(self, send: Send, media_type: str, size: int | None = None, status: int = 200) -> None:
        """Send the status and headers."""
        headers = [(b"content-type", media_type.encode()), (b"cache-control", b"no-store"), *self.more_headers]
        if size is not None:
            headers.append((b"content-length", str(size).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        self._begun = True

    async def _conclude(self, working: asyncio.Task[None], scope: Scope, receive: Receive, send: Send) -> None:
        try:
            working.result()
        except TorporError as error:
            request_id = scope["state"]["request_id"]
            if self._begun:
                # No status can say it any more; an unfinished body can, and the next request gets the reason.
                _log.warning("answer broken off", request_id=request_id, path=scope["path"], error=error.message)
            else:
                await answer_for(error, request_id)(scope, receive, send)


class Piped(Watched):
    """Bytes from a source, passed through one chunk at a time."""

    def __init__(self, source: AbstractAsyncContextManager[ByteSource], media_type: str) -> None:
        super().__init__()
        self._source = source
        self._type = media_type

    async def work(self, send: Send) -> None:
        async with self._source as source:
            await self.begin(send, self._type, source.size)
            async for chunk in source.chunks:
                await send(part(chunk))
        await send(part(b"", more=False))


class Patient(Watched):
    """One JSON object, however long it takes to make.

    If it takes longer than PATIENCE_S, or than the client prefers to wait, the answer begins as the success it is hoped
    to be, padded with spaces every BEAT_S until the JSON is there.
    """

    def __init__(self, clock: Clock, make: Callable[[], Awaitable[BaseModel]], status: int = 200) -> None:
        super().__init__()
        self._clock = clock
        self._make = make
        self._status = status
        self._patience_s = PATIENCE_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._patience_s = patience_of(scope)
        await super().__call__(scope, receive, send)

    async def work(self, send: Send) -> None:
        padding = asyncio.create_task(self._pad(send))
        try:
            answer = await self.result()
        finally:
            await end_tasks(padding)
        body = answer.model_dump_json().encode()
        if not self._begun:
            await self.begin(send, _JSON, len(body), self._status)
        await send(part(body, more=False))

    async def result(self) -> BaseModel:
        """Return what is to be answered."""
        return await self._make()

    async def _pad(self, send: Send) -> None:
        await self._clock.sleep(self._patience_s)
        with suppress(OSError):  # nobody is there any more whose patience it could be for
            await self.begin(send, _JSON, status=self._status)
            while True:
                await send(part(b" "))
                await self._clock.sleep(BEAT_S)


class PatientPassage(Patient):
    """What a verb answers that changes a sandbox: it is not left half-way because nobody listens any more."""

    endures = True


class PatientCommand(Patient):
    """A command's collected result. A timeout after padding began is an exit code 124 with the reason in stderr."""

    def __init__(self, clock: Clock, make: Callable[[], Awaitable[BaseModel]], job: str | None = None) -> None:
        super().__init__(clock, make)
        if job is not None:
            self.more_headers = [process_header(job)]

    async def result(self) -> BaseModel:
        begin = self._clock.monotonic()
        try:
            return await self._make()
        except ExecTimeout as error:
            if not self._begun:
                raise
            duration_ms = round((self._clock.monotonic() - begin) * 1000)
            stderr = f"{error.stderr}{error.message}\n"
            return ExecAnswer(stdout=error.stdout, stderr=stderr, exit_code=124, duration_ms=duration_ms)


def patience_of(scope: Scope) -> float:
    """Return how long a request's client waits for an answer to begin, in seconds."""
    preferred = b",".join(value for name, value in scope["headers"] if name == b"prefer")
    found = _WAIT.search(preferred)
    return PATIENCE_S if found is None else float(min(max(int(found[1]), 1), _MOST_PATIENCE_S))


def process_header(job: str) -> tuple[bytes, bytes]:
    """Return the header that tells a command's id, by which it can be found again."""
    return b"x-process-id", job.encode()


def part(body: bytes, *, more: bool = True) -> Message:
    """Return the ASGI message for a piece of the body."""
    return {"type": "http.response.body", "body": body, "more_body": more}


def _is_expected(ended: asyncio.Task[None]) -> bool:
    """Tell whether work whose client is gone ended in a way that has been told, or need not be."""
    return ended.cancelled() or isinstance(ended.exception(), TorporError | OSError | None)


async def _wait_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def beating(work: Coroutine[Any, Any, None], beat: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end beside `beat`, which is ended with it."""
    async with beside(beat):
        await work
