"""The line to one command: what it writes as it comes, over as many connections as that takes."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from torpor.errors import NotFound, OutcomeUnknown, TorporError, Unavailable
from torpor.model.ids import is_job_id
from torpor.sdk.http import Call
from torpor.sdk.listening import BEAT_S, ID_HEADER, KILL_SILENCE_S, SHORTEST_SILENCE_S, Deadline, Listened
from torpor.sdk.output import Output, heard
from torpor.sdk.retry import Reattaching
from torpor.sdk.sse import Event, EventReader
from torpor.sdk.waiting import async_sleep
from torpor.wire.public import StreamExit

if TYPE_CHECKING:
    from torpor.sdk._async.client import AsyncClient


class AsyncLine:
    """Listens to one command to its end. Where a connection breaks, another one goes on from the byte it broke at.

    `end` is how the command ended, and None until it has. `is_over`: there is nothing more to listen to, because it
    ended, or failed, or is out of reach.
    """

    def __init__(self, client: AsyncClient, listened: Listened, deadline: Deadline | None = None) -> None:
        self._client = client
        self._listened = listened
        self._deadline = deadline or Deadline(None)
        self._patience = Reattaching(client.retry)
        self._was_sent = False
        self.end: StreamExit | None = None
        self.is_over = False

    async def pieces(self) -> AsyncGenerator[Output, None]:
        """Yield what the command writes until it has ended, each byte once.

        Raises the error the server reports, HostUnreachable, OutcomeUnknown if the line could not be made again or the
        command is not there any more, and TimeoutError at the deadline.
        """
        while self.end is None:
            try:
                async with aclosing(self._connection()) as arriving:
                    async for piece in arriving:
                        yield piece
            except TorporError as error:
                await async_sleep(self._delay_s(error))
            if self.end is None and self._deadline.has_passed():
                raise TimeoutError("the command runs on")
        self.is_over = True

    async def kill(self) -> None:
        """Kill the command if the server can be told so within some seconds; it is no error if not."""
        with contextlib.suppress(TorporError):
            if self._listened.id is None and self._was_sent:
                await self._learn_id()
            if self._listened.id is not None:
                await self._client.fetch(self._listened.killing())

    async def _connection(self) -> AsyncGenerator[Output, None]:
        """Yield what arrives on one connection."""
        silence_s = min(self._deadline.silence_s(), max(SHORTEST_SILENCE_S, self._patience.left_s()))
        events = EventReader()
        began = time.monotonic()
        async with aclosing(self._chunks(silence_s)) as chunks:
            async for chunk in chunks:
                if time.monotonic() - began > BEAT_S:
                    self._patience.progress()
                for event in events.feed(chunk):
                    if (piece := self._take(event)) is not None:
                        yield piece
                if self.end is None and self._deadline.cuts(silence_s):
                    return
        if self.end is None:
            raise OutcomeUnknown("the server ended the stream before the command's result")

    async def _chunks(self, silence_s: float) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of one connection. That it breaks after the command's end is nobody's loss."""
        if self._listened.id is not None and self._listened.has_input:
            # Its order is sent again for the input in it, and would run it again where it is not there any more.
            await self._client.fetch(Call("GET", self._listened.process))
        self._was_sent = True
        response = await self._client.open(self._listened.call(silence_s))
        self._patience.opened()
        try:
            self._learn(response.headers.get(ID_HEADER))
            async for chunk in self._client.chunks(response):
                yield chunk
        except OutcomeUnknown:
            if self.end is None:
                raise
        finally:
            await response.aclose()

    def _take(self, event: Event) -> Output | None:
        said = heard(event)
        if isinstance(said, StreamExit):
            self.end = said
            return None
        if said is not None:
            self._listened.took(said)
            self._patience.progress()
        return said

    def _delay_s(self, error: TorporError) -> float:
        """Return how long to wait before the next connection. Raises what the caller is told if there is none."""
        if self._deadline.has_passed() and isinstance(error, OutcomeUnknown | Unavailable):
            raise TimeoutError("the command runs on") from error
        if (delay := self._patience.delay_s(error)) is not None:
            return min(delay, self._deadline.left_s())
        self.is_over = True
        if isinstance(error, NotFound) and self._listened.order is not None and self._listened.id is not None:
            raise OutcomeUnknown(
                f"the command is not there any more: {error.message}",
                hint="its sandbox may have gone back to a snapshot",
                request_id=error.request_id,
            ) from error
        raise self._patience.verdict(error) from error.__cause__

    def _learn(self, id: str | None) -> None:
        if id is not None and is_job_id(id):
            self._listened.id = id

    async def _learn_id(self) -> None:
        """Send the order again, for the id in the answer: the key lets it run once."""
        response = await self._client.open(dataclasses.replace(self._listened.call(KILL_SILENCE_S), once=True))
        try:
            self._learn(response.headers.get(ID_HEADER))
        finally:
            await response.aclose()
