"""One call under way on the line to a guest's agent: what was received of it, and what may be sent."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Protocol

from torpor.errors import OutcomeUnknown, TorporError
from torpor.guest.refusals import refusal_of
from torpor.kit.shielded import shielded
from torpor_guest import protocol
from torpor_guest.protocol import Frame, ProtocolError

# How long a call that was given up waits for the guest to confirm, in seconds.
_CANCEL_S = 10.0
# Pieces of output kept for one call before those of one sub-channel are put together.
_MAX_PIECES = 64

Data = tuple[int, bytes]


class Line(Protocol):
    """What a call needs of its channel."""

    @property
    def held(self) -> bool:
        """Whether nothing is sent now."""

    def write_control(self, frames: bytes) -> None:
        """Send frames before any bulk data that waits."""

    def write_bulk(self, frame: bytes) -> None:
        """Send one frame for which `wait_writable` was awaited just before."""

    async def wait_writable(self) -> None:
        """Return when it is the caller's turn to write bulk data."""

    def pass_turn(self) -> None:
        """Let the next one write; for whoever has awaited `wait_writable` and then writes nothing."""

    def fail(self, reason: str) -> OutcomeUnknown:
        """Close the line because the guest broke the protocol; return the error to raise."""


class Call:
    """One call under way. Its owner closes it; leaving it early tells the guest to stop."""

    def __init__(self, line: Line, number: int, *, connects: bool = False) -> None:
        """`connects`: the guest says with READY that a connection is there, before anything else of it."""
        self._line, self.number = line, number
        self._awaits_ready = connects
        self._credit = protocol.WINDOW
        self._allowed = [0, protocol.WINDOW, protocol.WINDOW]
        self._consumed = [0, 0, 0]
        self._received: deque[tuple[int, bytearray]] = deque()
        self._parts = bytearray()
        self._result: dict[str, Any] | None = None
        self._error: TorporError | None = None
        self._abandoned = False
        # Set whenever something changes that a waiter may wait for; each clears it before it looks.
        self._changed = asyncio.Event()

    @property
    def over(self) -> bool:
        """Whether the guest has answered, or never will."""
        return self._result is not None or self._error is not None

    async def ready(self) -> None:
        """Return when the guest has said that it is connected. Raises what ended the call instead."""
        while self._awaits_ready:
            if self._error is not None:
                raise self._error
            if self.over:
                raise self._line.fail("a result before the connection was there")
            await self._wait_changed()

    async def receive(self) -> Data | None:
        """Return the next (sub-channel, bytes), or None when the call has ended well.

        Raises what ended it otherwise.
        """
        while not self._received:
            if self._error is not None:
                raise self._error
            if self._result is not None:
                return None
            await self._wait_changed()
        sub, payload = self._received.popleft()
        self._consumed[sub] += len(payload)
        if self._consumed[sub] >= protocol.CREDIT_STEP and not self.over:
            self._allowed[sub] += self._consumed[sub]
            self._line.write_control(protocol.credit(self.number, sub, self._consumed[sub]))
            self._consumed[sub] = 0
        return sub, bytes(payload)

    async def result(self) -> dict[str, Any]:
        """Return the guest's result, which data may not come before. Raises what ended the call otherwise."""
        if await self.receive() is not None:
            raise self._line.fail("data where only a result is due")
        return self._result or {}

    async def send(self, data: bytes | memoryview) -> bool:
        """Send bytes of INPUT as the guest takes them. Returns False, with some not sent, once the call is over."""
        view = memoryview(data)
        while view:
            if self.over:
                return False
            if self._credit == 0:
                await self._wait_changed()
                continue
            await self._line.wait_writable()
            size = min(len(view), self._credit, protocol.MAX_PAYLOAD)
            if self.over or size == 0:
                self._line.pass_turn()
                continue
            self._credit -= size
            self._line.write_bulk(protocol.frame(self.number, protocol.DATA, protocol.INPUT, view[:size]))
            view = view[size:]
        return True

    def end_input(self) -> None:
        """Say that no more INPUT comes."""
        if not self.over:
            self._line.write_control(protocol.frame(self.number, protocol.END, protocol.INPUT))

    async def aclose(self) -> None:
        """End the call. If it is under way the guest is told to stop, and has a bounded time to confirm it.

        While the line is held nobody waits for that: the guest hears of it once the line is released.
        """
        if not self.over and not self._abandoned:
            self._abandon()
            await shielded(self._wait_confirmed())

    async def _wait_confirmed(self) -> None:
        try:
            async with asyncio.timeout(_CANCEL_S):
                while not self.over and not self._line.held:
                    await self._wait_changed()
        except TimeoutError:
            # The stream stays known to the channel, so a late answer is no breach; without credit it cannot grow.
            return

    async def _wait_changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # -- called by the channel

    def look_again(self) -> None:
        """The line has come to be held, which a waiter may want to know."""
        self._changed.set()

    def fail(self, error: TorporError) -> None:
        """The channel is closed."""
        if not self.over:
            self._error = error
        self._changed.set()

    def give_up(self, error: TorporError) -> None:
        """The guest is silent: end the call here, and tell the guest to stop should it ever listen again."""
        if not self.over:
            if not self._abandoned:
                self._abandon()
            self.fail(error)

    def _abandon(self) -> None:
        self._abandoned = True
        self._received.clear()
        self._line.write_control(protocol.frame(self.number, protocol.CANCEL))

    def take(self, frame: Frame) -> bool:
        """Take a frame of the guest and return whether it is the call's last. Raises ProtocolError."""
        if frame.type == protocol.DATA and not self._awaits_ready:
            self._take_data(frame.sub, frame.payload)
        elif frame.type == protocol.READY and self._awaits_ready:
            self._awaits_ready = False
        elif frame.type == protocol.CREDIT and frame.sub == protocol.INPUT:
            self._credit += protocol.credit_count(frame.payload)
            if self._credit > protocol.WINDOW:
                raise ProtocolError("credit beyond the window")
        elif frame.type == protocol.RESULT:
            self._take_result(frame)
        elif frame.type == protocol.ERROR:
            self._error = refusal_of(protocol.load(bytes(frame.payload)))
        else:
            raise ProtocolError(f"a frame of type {frame.type} from the guest")
        self._changed.set()
        return self._result is not None or frame.type == protocol.ERROR

    def _take_data(self, sub: int, payload: memoryview) -> None:
        if sub not in (protocol.OUTPUT, protocol.ERRORS) or len(payload) > self._allowed[sub] or not payload:
            raise ProtocolError("data that no credit was given for")
        self._allowed[sub] -= len(payload)
        if not self._abandoned:
            self._keep(sub, payload)

    def _keep(self, sub: int, payload: memoryview) -> None:
        # A guest that sends single bytes must not make us keep an object for each. Order between stdout and stderr is
        # kept only as long as there are few pieces.
        crowded = len(self._received) >= _MAX_PIECES
        for kept_sub, kept in reversed(self._received):
            if kept_sub == sub and (crowded or len(kept) + len(payload) <= protocol.MAX_PAYLOAD):
                kept.extend(payload)
                return
            if not crowded:
                break
        self._received.append((sub, bytearray(payload)))

    def _take_result(self, frame: Frame) -> None:
        self._parts += frame.payload
        if len(self._parts) > protocol.MAX_RESULT:
            raise ProtocolError("a result that is too long")
        if frame.sub == protocol.LAST:
            self._result = protocol.load(self._parts)
