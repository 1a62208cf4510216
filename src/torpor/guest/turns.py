"""Who may write next, while a socket takes less than there is to send."""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Bulk data waits here, in the order it came, while the socket takes no more or the line is held; each turn lets
    one frame through.
    """

    def __init__(self) -> None:
        self._paused = self._held = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Return when the socket has taken all that was written, the line is not held, and everybody who asked before
        had a turn.

        Whoever returns from it calls `next`, after having written or not.
        """
        if not self._paused and not self._held and not self._waiting:
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await self._have(turn)
        while self._held:  # it came to be held between the giving of the turn and now: first again at its release
            turn = asyncio.get_running_loop().create_future()
            self._waiting.appendleft(turn)
            await self._have(turn)

    async def _have(self, turn: asyncio.Future[None]) -> None:
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:
                self.next()  # the turn was given to us and is not used
            raise

    def next(self) -> None:
        """Let the next one write, if the socket takes more."""
        while self._waiting and not self._paused and not self._held:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def pause(self) -> None:
        """The socket takes no more now."""
        self._paused = True

    def resume(self) -> None:
        """The socket has taken everything."""
        self._paused = False
        self.next()

    def hold(self) -> None:
        """Let nobody write."""
        self._held = True

    def release(self) -> None:
        """Let them write again."""
        self._held = False
        self.next()

    def wake_all(self) -> None:
        """End all waiting, also that for a release; each finds out what has changed."""
        self._held = False
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)
        self._waiting.clear()
