"""Holding a line: what is not to be sent now waits here."""

from __future__ import annotations

import asyncio


class Hold:
    """Whether a line is held, and what waits for its release.

    `leaving`: the guest is about to leave its machine, so what is new is refused rather than kept waiting.
    `confirmed`: the guest has said that it stands still, and was not told to go on since.
    """

    def __init__(self) -> None:
        self.on = self.leaving = self.confirmed = False
        self._kept: list[bytes] = []
        # Set at the next change, and replaced by another one then.
        self._change = asyncio.Event()

    def begin(self, *, leaving: bool) -> None:
        """Hold the line, or change what for."""
        self.on, self.leaving = True, leaving
        self._tell()

    def keep(self, frames: bytes) -> None:
        """Keep whole frames until the end.

        They are few: what can be sent here without the guest sending more is bounded by the flow control.
        """
        self._kept.append(frames)

    def end(self) -> bytes:
        """Hold no longer; return what was kept, in its order."""
        self.on = self.leaving = self.confirmed = False
        kept = b"".join(self._kept)
        self._kept.clear()
        self._tell()
        return kept

    def _tell(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    async def changed(self) -> None:
        """Return when the hold has begun, changed or ended."""
        await self._change.wait()
