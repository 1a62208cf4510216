"""Answers that are made while they are sent, and end their work when the client goes away."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import structlog
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from torpor.control.api.problems import answer_for
from torpor.control.hosts import ByteSource
from torpor.errors import ExecTimeout, TorporError
from torpor.kit.clock import Clock
from torpor.kit.shielded import wait_ended
from torpor.wire.public import ExecAnswer

_log = structlog.get_logger("torpor.control")

# Some clients stop reading after 30 s of silence, so a long answer begins early and is kept alive with spaces.
PATIENCE_S = 10.0
BEAT_S = 5.0


class Watched(Response):
    """An answer whose `work` is cancelled when the client disconnects, and is over when the call returns."""

    def __init__(self) -> None:
        self.background = None
        self._begun = False

    @abstractmethod
    async def work(self, send: Send) -> None:
        """Send the answer. A TorporError raised before `begin` becomes an error's answer; after it, a broken answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        working = asyncio.create_task(self.work(send))
        gone = asyncio.create_task(_wait_gone(receive))
        try:
            await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(working, gone)
        if working.cancelled():
            _log.info("client gone", request_id=scope["state"]["request_id"], path=scope["path"])
            return
        await self._conclude(working, scope, receive, send)

    async def begin(self, send: Send, media_type: str, size: int | None = None) -> None:
        """Send the status and headers."""
        headers = [(b"content-type", media_type.encode()), (b"cache-control", b"no-store")]
        if size is not None:
            headers.append((b"content-length", str(size).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
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
    """A command's collected result.

    If it takes longer than PATIENCE_S, the answer begins as a success, padded with spaces every BEAT_S until the JSON
    is there. A timeout that comes later than that is an exit code 124 with the reason in stderr.
    """

    def __init__(self, clock: Clock, collect: Callable[[], Awaitable[ExecAnswer]]) -> None:
        super().__init__()
        self._clock = clock
        self._collect = collect

    async def work(self, send: Send) -> None:
        padding = asyncio.create_task(self._pad(send))
        try:
            answer = await self._result()
        finally:
            await _end(padding)
        body = answer.model_dump_json().encode()
        if not self._begun:
            await self.begin(send, "application/json", len(body))
        await send(part(body, more=False))

    async def _result(self) -> ExecAnswer:
        begin = self._clock.monotonic()
        try:
            return await self._collect()
        except ExecTimeout as error:
            if not self._begun:
                raise
            duration_ms = round((self._clock.monotonic() - begin) * 1000)
            stderr = f"{error.stderr}{error.message}\n"
            return ExecAnswer(stdout=error.stdout, stderr=stderr, exit_code=124, duration_ms=duration_ms)

    async def _pad(self, send: Send) -> None:
        await self._clock.sleep(PATIENCE_S)
        await self.begin(send, "application/json")
        while True:
            await send(part(b" "))
            await self._clock.sleep(BEAT_S)


def part(body: bytes, *, more: bool = True) -> Message:
    """Return the ASGI message for a piece of the body."""
    return {"type": "http.response.body", "body": body, "more_body": more}


async def _wait_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        await wait_ended(task)


async def beating(work: Coroutine[Any, Any, None], beat: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end beside `beat`, which is ended with it."""
    beats = asyncio.create_task(beat)
    try:
        await work
    finally:
        await _end(beats)
