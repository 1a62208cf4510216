"""The line to one guest's agent: many calls at once over one stream socket, each with its own flow control.

The protocol is `torpor_guest.protocol`. The guest is hostile: whatever it sends that the protocol does not allow
closes the channel. What a channel raises:

* `RestoreFailed` from `open`: no agent that we can speak with has answered. Nothing is left open.
* `Unavailable` from `call`: the channel was closed before; nothing was sent.
* `OutcomeUnknown` from a call under way when the channel closes, whoever closed it and why; and from all calls under
  way when the guest has been silent for SILENCE_S: it is told to stop them, and the channel stays open.
* the guest's own refusals, as the class that fits (`torpor.guest.refusals`).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from typing import Any, cast

from torpor.errors import Busy, InvalidRequest, OutcomeUnknown, RestoreFailed, TorporError, Unavailable
from torpor.guest.refusals import refusal_of
from torpor.guest.silence import Silence
from torpor.guest.turns import Turns
from torpor.kit.shielded import shielded
from torpor_guest import protocol
from torpor_guest.protocol import Frame, ProtocolError, Welcome

# How long a call that was given up waits for the guest to confirm, in seconds.
_CANCEL_S = 10.0
# A guest that sends nothing for half of SILENCE_S while a call is under way is asked for a sign of life, and one that
# gives none until the end of it, in seconds, hangs. Longer than a busy guest's disk takes for an fsync, for which
# everybody in it waits.
SILENCE_S = 30.0
# Pieces of output kept for one call before those of one sub-channel are put together.
_MAX_PIECES = 64

Data = tuple[int, bytes]


class Call:
    """One call under way. Its owner closes it; leaving it early tells the guest to stop."""

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel, self.number = channel, number
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
            self._channel.write_control(protocol.credit(self.number, sub, self._consumed[sub]))
            self._consumed[sub] = 0
        return sub, bytes(payload)

    async def result(self) -> dict[str, Any]:
        """Return the guest's result, which data may not come before. Raises what ended the call otherwise."""
        if await self.receive() is not None:
            raise self._channel.fail("data where only a result is due")
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
            await self._channel.wait_writable()
            size = min(len(view), self._credit, protocol.MAX_PAYLOAD)
            if self.over or size == 0:
                self._channel.pass_turn()
                continue
            self._credit -= size
            self._channel.write_bulk(protocol.frame(self.number, protocol.DATA, protocol.INPUT, view[:size]))
            view = view[size:]
        return True

    def end_input(self) -> None:
        """Say that no more INPUT comes."""
        if not self.over:
            self._channel.write_control(protocol.frame(self.number, protocol.END, protocol.INPUT))

    async def aclose(self) -> None:
        """End the call. If it is under way the guest is told to stop, and has a bounded time to confirm it."""
        if not self.over and not self._abandoned:
            self._abandon()
            await shielded(self._wait_confirmed())

    async def _wait_confirmed(self) -> None:
        try:
            async with asyncio.timeout(_CANCEL_S):
                while not self.over:
                    await self._wait_changed()
        except TimeoutError:
            # The stream stays known to the channel, so a late answer is no breach; without credit it cannot grow.
            return

    async def _wait_changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # -- called by the channel

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
        self._channel.write_control(protocol.frame(self.number, protocol.CANCEL))

    def take(self, frame: Frame) -> bool:
        """Take a frame of the guest and return whether it is the call's last. Raises ProtocolError."""
        if frame.type == protocol.DATA:
            self._take_data(frame.sub, frame.payload)
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


class Channel(asyncio.BufferedProtocol):
    """See `open`."""

    def __init__(self, silence_s: float = SILENCE_S) -> None:
        self.features: dict[str, Any] = {}
        self._silence = Silence(silence_s, self)
        self.closed = asyncio.Event()
        self._nonce = os.urandom(protocol.NONCE_SIZE)
        self._parser = protocol.Parser(protocol.seek_welcome(self._nonce))
        self._transport: asyncio.Transport
        self._welcomed: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._calls: dict[int, Call] = {}
        self._next_number = 1
        self._reason: str | None = None
        self._turns = Turns()

    @classmethod
    async def open(cls, sock: socket.socket, *, timeout_s: float, silence_s: float = SILENCE_S) -> Channel:
        """Resynchronise with the agent behind a connected stream socket, which belongs to the channel from now on.

        Raises RestoreFailed, and the socket is closed, if no agent of our protocol version answers in time.
        """
        loop = asyncio.get_running_loop()
        try:
            _, channel = await loop.create_unix_connection(lambda: cls(silence_s), sock=sock)
        except BaseException:
            sock.close()
            raise
        try:
            async with asyncio.timeout(timeout_s):
                welcome = await channel._greet()
        except BaseException as error:
            await channel.aclose()
            if isinstance(error, TimeoutError):
                raise RestoreFailed(f"the guest's agent did not answer within {timeout_s:g} s") from error
            if isinstance(error, OutcomeUnknown):
                raise RestoreFailed(f"the guest's agent could not be reached: {channel.reason}") from error
            raise
        channel.features = welcome.features
        return channel

    async def _greet(self) -> Welcome:
        self._transport.write(protocol.PREAMBLE + protocol.hello(self._nonce))
        welcome = await self._welcomed
        if welcome.version != protocol.VERSION:
            raise RestoreFailed(
                f"the guest's agent speaks protocol version {welcome.version}, this host speaks {protocol.VERSION}",
                hint="bake the template again with this version",
            )
        return welcome

    def call(self, request: dict[str, Any]) -> Call:
        """Begin a call.

        Raises Unavailable if the channel is closed, Busy or InvalidRequest if it is one too many or too long.
        """
        if self.closed.is_set():
            raise Unavailable(f"the guest's agent cannot be reached: {self.reason}")
        if len(self._calls) >= protocol.MAX_STREAMS:
            raise Busy(f"{protocol.MAX_STREAMS} calls are under way in this sandbox already")
        opening = protocol.message(self._next_number, protocol.OPEN, request)
        if len(opening) > protocol.MAX_REQUEST:
            raise InvalidRequest("the command and its environment are longer than 4 MiB")
        self._silence.begin()
        return self._begin(opening)

    def _begin(self, opening: bytes) -> Call:
        number, self._next_number = self._next_number, self._next_number + 2
        call = self._calls[number] = Call(self, number)
        self.write_control(opening)
        return call

    # -- a guest that hangs: see `torpor.guest.silence`

    def owed(self) -> bool:
        """Tell whether a call is under way."""
        return not all(call.over for call in self._calls.values())

    def ask(self) -> None:
        """Ask for a sign of life. Whatever the answer is, it is one."""
        self._begin(protocol.message(self._next_number, protocol.OPEN, {"op": "ping"}))

    def give_up(self) -> None:
        """End every call that is under way; the line stays open, in case the guest comes back."""
        error = OutcomeUnknown(
            f"the sandbox hangs: its agent has not answered for {self._silence.limit_s:g} s",
            hint="it may recover; if it does not, delete the sandbox",
        )
        for call in self._calls.values():
            call.give_up(error)
        self._turns.wake_all()

    async def aclose(self) -> None:
        """Close the line. Idempotent; calls under way raise OutcomeUnknown."""
        if not self.closed.is_set():
            self._transport.abort()
        await shielded(self.closed.wait())

    def fail(self, reason: str) -> OutcomeUnknown:
        """Close the line because the guest broke the protocol; return the error to raise."""
        if self._reason is None:
            self._reason = f"it broke the protocol: {reason}"
        self._transport.abort()
        return self._lost()

    @property
    def reason(self) -> str:
        """Why the line is closed, for a sentence."""
        return self._reason or "it was closed"

    def _lost(self) -> OutcomeUnknown:
        return OutcomeUnknown(f"the line to the guest's agent was lost: {self.reason}")

    # -- outgoing

    def write_control(self, frames: bytes) -> None:
        """Send frames before any bulk data that waits."""
        self._transport.write(frames)

    def write_bulk(self, frame: bytes) -> None:
        """Send one frame for which `wait_writable` was awaited just before."""
        self._transport.write(frame)
        self._turns.next()

    async def wait_writable(self) -> None:
        """Return when it is the caller's turn to write bulk data."""
        await self._turns.wait()

    def pass_turn(self) -> None:
        """Let the next one write; for whoever has awaited `wait_writable` and then writes nothing."""
        self._turns.next()

    # -- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)
        # Paused as soon as the kernel does not take everything: what waits, waits here where its order can be chosen.
        self._transport.set_write_buffer_limits(high=0)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Say where to put what is received."""
        del sizehint
        return self._parser.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was received."""
        self._silence.heard()
        try:
            for item in self._parser.take(nbytes):
                if isinstance(item, Frame):
                    self._take(item)
                elif isinstance(item, Welcome) and not self._welcomed.done():
                    self._welcomed.set_result(item)
            if self._parser.lost and self._welcomed.done():
                raise ProtocolError("bytes that are no frame")  # noqa: TRY301 - one way out for all breaches
        except ProtocolError as error:
            self.fail(str(error))

    def _take(self, frame: Frame) -> None:
        call = self._calls.get(frame.stream)
        if call is None:
            if frame.stream == 0 and frame.type == protocol.ERROR:
                raise ProtocolError(f"it says that we did: {refusal_of(protocol.load(bytes(frame.payload))).message}")
            raise ProtocolError("a frame for a stream that is not open")
        if call.take(frame):
            del self._calls[frame.stream]

    def pause_writing(self) -> None:
        """The socket takes no more now."""
        self._turns.pause()

    def resume_writing(self) -> None:
        """The socket has taken everything."""
        self._turns.resume()

    def eof_received(self) -> bool:
        """The other end closed the line."""
        self._reason = self._reason or "the other end closed the line"
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The line is closed."""
        if exc is not None:
            self._reason = self._reason or str(exc)
        error = self._lost()
        error.__cause__ = exc
        self.closed.set()
        self._silence.end()
        if not self._welcomed.done():
            self._welcomed.set_exception(error)
            self._welcomed.exception()  # retrieved: nobody may wait for it any more
        for call in list(self._calls.values()):
            call.fail(error)
        self._calls.clear()
        self._turns.wake_all()
