"""The log of a build that runs: made harmless, bounded, and written down in batches as it grows."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from torpor.control.store.contract import Store
from torpor.errors import TorporError
from torpor.kit.news import News
from torpor.kit.shielded import shielded
from torpor.model.builds import LogLine
from torpor.model.ids import BuildId

_log = structlog.get_logger("torpor.control")

# Of one build the newest lines are kept: so many, of so many characters in all, none longer than that.
MOST_LINES = 10_000
MOST_CHARACTERS = 1024 * 1024
LONGEST_LINE = 8 * 1024
# What may wait to be written; whoever says more waits.
_MOST_WAITING = 1000
# What programs send to terminals: colours, movements, titles.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def harmless(text: str) -> list[str]:
    """Return what a program wrote as lines of printable text: a guest says in it what it likes."""
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        # What a progress bar has overwritten is not there any more.
        shown = _ESCAPE.sub("", line.rstrip("\r").rpartition("\r")[2])
        printable = "".join(character if character.isprintable() else " " for character in shown)
        lines.append(printable if len(printable) <= LONGEST_LINE else printable[:LONGEST_LINE] + " ...")
    return lines


class BuildLog:
    """The log of one build. What is said is written a moment later; all of it is written when `kept` ends."""

    def __init__(self, store: Store, build_id: BuildId, grown: News) -> None:
        self._store, self._build, self._grown = store, build_id, grown
        self._waiting: asyncio.Queue[str | None] = asyncio.Queue(_MOST_WAITING)
        self._last = 0
        self._sizes: deque[int] = deque()
        self._size = 0

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[BuildLog]:
        """Write what is said while the block lasts. What cannot be written is missing, and the server's log says so."""
        writing = asyncio.create_task(self._write())
        try:
            yield self
        finally:
            await shielded(self._end(writing))

    async def say(self, text: str) -> None:
        """Add what was said, one line or several."""
        for line in harmless(text):
            await self._waiting.put(line)

    async def _end(self, writing: asyncio.Task[None]) -> None:
        await self._waiting.put(None)
        await writing

    async def _write(self) -> None:
        is_over = False
        while not is_over:
            said = [await self._waiting.get()]
            while not self._waiting.empty():
                said.append(self._waiting.get_nowait())
            is_over = None in said
            lines = [self._numbered(text) for text in said if text is not None]
            try:
                await self._store.add_lines(self._build, lines, keep_from=self._last - len(self._sizes) + 1)
            except TorporError as error:
                _log.warning("lines of a build not written", build=self._build, error=error.message)
            self._grown.ring()

    def _numbered(self, text: str) -> LogLine:
        self._last += 1
        self._sizes.append(len(text))
        self._size += len(text)
        while len(self._sizes) > MOST_LINES or self._size > MOST_CHARACTERS:
            self._size -= self._sizes.popleft()
        return LogLine(self._last, text)
