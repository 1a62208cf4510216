"""How a command in the guest is started and listened to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Generic, ParamSpec

from torpor.errors import ExecTimeout, OutcomeUnknown
from torpor.sdk._async.line import AsyncLine
from torpor.sdk.listening import Listened
from torpor.sdk.output import Transcript, Watchers
from torpor.sdk.results import ExecResult
from torpor.sdk.waiting import async_deliver

if TYPE_CHECKING:
    from torpor.sdk._async.client import AsyncClient

P = ParamSpec("P")


class AsyncCommands(Generic[P]):
    """The commands of one sandbox: `sbx.commands.run` is `sbx.exec` under another name."""

    def __init__(self, run: Callable[P, Awaitable[ExecResult]]) -> None:
        self.run = run


async def follow(client: AsyncClient, listened: Listened, watchers: Watchers) -> ExecResult:
    """Run a command, hand its output on as it arrives, and return how it ended. Raises as `exec` does.

    Who is interrupted while waiting for it, or fails on its output, ends it.
    """
    line = AsyncLine(client, listened)
    try:
        return await transcribed(line, watchers)
    except OutcomeUnknown as error:
        if not line.is_over:  # a callback's own
            await line.kill()
            raise
        raise OutcomeUnknown(
            f"{error.message}; the command may still be running",
            hint=error.hint or "look at what it did before running it again",
            request_id=error.request_id,
        ) from error
    except BaseException:
        if not line.is_over:
            await line.kill()
        raise


async def transcribed(line: AsyncLine, watchers: Watchers) -> ExecResult:
    """Listen to a command to its end, hand its output on, and return how it ended. Raises as the line does."""
    transcript = Transcript(watchers)
    try:
        async with aclosing(line.pieces()) as pieces:
            async for piece in pieces:
                for callback, said in transcript.add(piece):
                    await async_deliver(callback, said)
    except ExecTimeout as error:
        if line.is_over:
            transcript.give_to(error)
        raise
    for callback, said in transcript.end():
        await async_deliver(callback, said)
    return transcript.result(line.end, is_whole=not line.has_gap)
