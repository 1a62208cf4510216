"""The line to one command: what it writes as it comes, over as many connections as that takes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from torpor.errors import InvalidRequest, NotFound, OutcomeUnknown, TorporError, Unavailable
from torpor.sdk.http import Call
from torpor.sdk.listening import SHORTEST_SILENCE_S, Deadline, Listened
from torpor.sdk.output import Output, Started, heard
from torpor.sdk.retry import Reattaching
from torpor.sdk.sse import Event, EventReader, Unreadable
from torpor.sdk.waiting import async_sleep
from torpor.wire.processes import ProcessView
from torpor.wire.public import StreamExit

if TYPE_CHECKING:
    from torpor.sdk._async.client import AsyncClient

# A command may write faster than its output is asked for; so often in a row that is tried.
_MOST_REFUSALS = 5


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
        self._refusals = 0
        self._refusal: InvalidRequest | None = None
        self.end: StreamExit | None = None
        self.is_over = False

    @property
    def has_gap(self) -> bool:
        """Whether output is missing that was not kept for long enough."""
        return self._listened.has_gap

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
            except Unreadable as error:
                if self.end is None:
                    self.is_over = True
                    raise error.told() from error
            except TorporError as error:
                await async_sleep(self._delay_s(error))
            if self.end is None and self._deadline.has_passed():
                raise TimeoutError("the command runs on")
        self.is_over = True

    async def kill(self) -> None:
        """Kill the command if it is there and the server can be told so within some seconds; it is no error if not."""
        if self._was_sent:
            with contextlib.suppress(TorporError):
                await self._client.fetch(self._listened.killing())

    async def _connection(self) -> AsyncGenerator[Output, None]:
        """Yield what arrives on one connection."""
        silence_s = min(self._deadline.silence_s(), max(SHORTEST_SILENCE_S, self._patience.left_s()))
        events = EventReader()
        async with aclosing(self._chunks(silence_s)) as chunks:
            async for chunk in chunks:
                for event in events.feed(chunk):
                    if self.end is None and (piece := self._take(event)) is not None:
                        yield piece
                if self.end is None and self._deadline.cuts(silence_s):
                    return
        if self.end is None:
            raise OutcomeUnknown("the server ended the stream before the command's result")

    async def _chunks(self, silence_s: float) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of one connection. That it breaks after the command's end is nobody's loss."""
        if self._refusal is not None or (self._listened.is_there and self._listened.has_input):
            # An order that is sent again for the input in it would run it again where it is not there any more.
            self._catch_up(await self._client.fetch_as(ProcessView, Call("GET", self._listened.process)))
        self._was_sent = True
        response = await self._client.open(self._listened.call(silence_s))
        self._patience.opened()
        try:
            async for chunk in self._client.chunks(response):
                yield chunk
        except OutcomeUnknown:
            if self.end is None:
                raise
        finally:
            await response.aclose()

    def _take(self, event: Event) -> Output | None:
        said = heard(event)
        if said is None:
            return None
        self._patience.progress()
        self._refusals = 0
        if isinstance(said, StreamExit):
            self.end = said
            return None
        self._listened.took(said)
        return None if isinstance(said, Started) else said

    def _catch_up(self, view: ProcessView) -> None:
        """Go on with the oldest output that is kept, if that is why the server refused. Raises the refusal if not."""
        refusal, self._refusal = self._refusal, None
        has_moved = self._listened.skips and self._listened.skip_to(view.stdout_start, view.stderr_start)
        if refusal is not None and not has_moved:
            self._refusals = _MOST_REFUSALS
            raise refusal

    def _delay_s(self, error: TorporError) -> float:
        """Return how long to wait before the next connection. Raises what the caller is told if there is none."""
        if self._deadline.has_passed() and isinstance(error, OutcomeUnknown | Unavailable):
            raise TimeoutError("the command runs on") from error
        if (delay := self._patience.delay_s(error)) is not None:
            return min(delay, self._deadline.left_s())
        if isinstance(error, InvalidRequest) and self._may_catch_up():
            self._refusal = error
            return 0.0
        self.is_over = True
        if isinstance(error, NotFound) and self._listened.order is not None and self._listened.is_there:
            raise OutcomeUnknown(
                f"the command is not there any more: {error.message}",
                hint="its sandbox may have gone back to a snapshot",
                request_id=error.request_id,
            ) from error
        raise self._patience.verdict(error) from error.__cause__

    def _may_catch_up(self) -> bool:
        self._refusals += 1
        return self._listened.is_there and self._listened.skips and self._refusals <= _MOST_REFUSALS
