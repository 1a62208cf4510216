"""The line to one guest's agent: many calls at once over one stream socket, each with its own flow control.

The protocol is `torpor_guest.protocol`. The guest is hostile: whatever it sends that the protocol does not allow
closes the channel. What a channel raises:

* `RestoreFailed` from `open`: no agent that we can speak with has answered. Nothing is left open.
* `Unavailable` from `call`: the channel was closed before; nothing was sent. `Busy`: the guest is being frozen.
* `OutcomeUnknown` from a call under way when the channel closes, whoever closed it and why; and from all calls under
  way when the guest has been silent for SILENCE_S: it is told to stop them, and the channel stays open.
* the guest's own refusals, as the class that fits (`torpor.guest.refusals`).

A guest may be frozen, its machine ended, and woken in another one while calls are under way. The channel is held then:
of what is to be sent to the guest everything waits, in order, until the release. What the guest had sent before is
read to its end, be it in the middle of a frame, and after `continue_on` the rest of it comes over another socket.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any, cast

from torpor.errors import Busy, InvalidRequest, OutcomeUnknown, RestoreFailed, Unavailable
from torpor.guest.calls import Call
from torpor.guest.hold import Hold
from torpor.guest.refusals import refusal_of
from torpor.guest.silence import Silence
from torpor.guest.turns import Turns
from torpor.kit.shielded import shielded
from torpor_guest import protocol
from torpor_guest.protocol import Frame, ProtocolError, Welcome

# A guest that sends nothing for half of SILENCE_S while a call is under way is asked for a sign of life, and one that
# gives none until the end of it, in seconds, hangs. Longer than a busy guest's disk takes for an fsync, for which
# everybody in it waits.
SILENCE_S = 30.0
# Of the streams that there may be, so many are kept for those who must come through: freezes, signs of life.
_RESERVED = 8


class Channel(asyncio.BufferedProtocol):
    """See `open`."""

    def __init__(self, silence_s: float = SILENCE_S) -> None:
        self.features: dict[str, Any] = {}
        self.closed = asyncio.Event()
        self._silence = Silence(silence_s, self)
        self._nonce = os.urandom(protocol.NONCE_SIZE)
        self._parser = protocol.Parser(protocol.seek_welcome(self._nonce))
        self._transport: asyncio.Transport
        self._welcomed: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._calls: dict[int, Call] = {}
        self._next_number = 1
        self._reason: str | None = None
        self._turns = Turns()
        self._hold = Hold()
        # Set while there is no socket: for a while, or for good once the channel is closed.
        self._unplugged = asyncio.Event()
        # Nobody wants it to go on elsewhere: it was closed here, or the guest broke the protocol.
        self._ending = False

    @classmethod
    async def open(cls, sock: socket.socket, *, timeout_s: float, silence_s: float = SILENCE_S) -> Channel:
        """Resynchronise with the agent behind a connected stream socket, which belongs to the channel from now on.

        Raises RestoreFailed, and the socket is closed, if no agent of our protocol version answers in time.
        """
        channel = cls(silence_s)
        await channel._plug(sock)
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

    @classmethod
    def lost(cls) -> Channel:
        """Return a line that is closed already, for a guest to whom there is none yet."""
        channel = cls()
        channel._ending = True
        channel._lose(None)
        return channel

    async def _plug(self, sock: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=sock)
        except BaseException:
            sock.close()
            raise

    async def _greet(self) -> Welcome:
        self._transport.write(protocol.PREAMBLE + protocol.hello(self._nonce))
        welcome = await self._welcomed
        if welcome.version != protocol.VERSION:
            raise RestoreFailed(
                f"the guest's agent speaks protocol version {welcome.version}, this host speaks {protocol.VERSION}",
                hint="bake the template again with this version",
            )
        return welcome

    async def call(self, request: dict[str, Any], *, connects: bool = False) -> Call:
        """Begin a call; while the line is held, at its release. `connects`: see `Call`.

        Raises Unavailable if the channel is closed, Busy if the guest is leaving its machine, Busy or InvalidRequest
        if the call is one too many or too long. Nothing was sent then.
        """
        while self._hold.on:
            if self._hold.leaving:
                raise Busy("the sandbox is being frozen", hint="try again in a moment")
            await self._hold.changed()
        if len(self._calls) >= protocol.MAX_STREAMS - _RESERVED:
            raise Busy(f"{len(self._calls)} calls are under way in this sandbox already")
        return self.call_now(request, connects=connects)

    def call_now(self, request: dict[str, Any], *, connects: bool = False) -> Call:
        """Begin a call even if the line is held. Raises Unavailable or InvalidRequest as `call` does."""
        if self.closed.is_set() or self._unplugged.is_set():
            raise Unavailable(f"the guest's agent cannot be reached: {self.reason}")
        opening = protocol.message(self._next_number, protocol.OPEN, request)
        if len(opening) > protocol.MAX_REQUEST:
            raise InvalidRequest("the command and its environment are longer than 4 MiB")
        if not self._hold.on:
            self._silence.begin()
        return self._begin(opening, connects=connects)

    def _begin(self, opening: bytes, *, connects: bool = False) -> Call:
        number, self._next_number = self._next_number, self._next_number + 2
        call = self._calls[number] = Call(self, number, connects=connects)
        self._transport.write(opening)
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

    # -- a guest that is frozen, and wakes elsewhere

    @property
    def held(self) -> bool:
        """Whether nothing is sent now but what `call_now` begins."""
        return self._hold.on

    @property
    def confirmed(self) -> bool:
        """Whether the guest has confirmed that it stands still, and was not told to go on since."""
        return self._hold.confirmed

    @confirmed.setter
    def confirmed(self, value: bool) -> None:
        self._hold.confirmed = value

    @property
    def suspended(self) -> bool:
        """Whether the guest has left its machine and the line waits for another socket."""
        return self._unplugged.is_set() and not self.closed.is_set()

    def hold(self, *, leaving: bool) -> None:
        """Keep back from now on what calls under way have to send; a guest's silence means nothing meanwhile.

        New calls wait, or with `leaving` are refused.
        """
        self._hold.begin(leaving=leaving)
        self._turns.hold()
        self._silence.end()
        for call in self._calls.values():
            call.look_again()

    def release(self) -> None:
        """Send what was kept back, and let new calls through. Idempotent; nothing happens while it is suspended."""
        if not self._hold.on or self.suspended:
            return
        if kept := self._hold.end():
            self._transport.write(kept)
        self._turns.release()
        if self.owed():
            self._silence.begin()

    async def released(self) -> None:
        """Return when the line is not held, or closed."""
        while self._hold.on:
            await self._hold.changed()

    async def wait_suspended(self) -> None:
        """Return when a guest that was leaving has left: all it had sent is read, and calls under way wait.

        Raises OutcomeUnknown if the line was lost instead.
        """
        await self._unplugged.wait()
        if self.closed.is_set():
            raise self._lost()

    async def continue_on(self, sock: socket.socket) -> None:
        """Go on, still held, over another socket, which belongs to the channel from now on.

        Raises Unavailable, and the socket is closed, if the channel is not suspended.
        """
        if not self.suspended:
            sock.close()
            raise Unavailable(f"the line to the guest's agent does not wait for another one: {self.reason}")
        await self._plug(sock)

    async def aclose(self) -> None:
        """Close the line. Idempotent; calls under way raise OutcomeUnknown."""
        self._cut()
        await shielded(self.closed.wait())

    def _cut(self) -> None:
        self._ending = True
        if self.suspended:
            self._lose(None)
        elif not self.closed.is_set():
            self._transport.abort()

    def fail(self, reason: str) -> OutcomeUnknown:
        """Close the line because the guest broke the protocol; return the error to raise."""
        if self._reason is None:
            self._reason = f"it broke the protocol: {reason}"
        self._cut()
        return self._lost()

    @property
    def reason(self) -> str:
        """Why the line is closed, for a sentence."""
        return self._reason or "it was closed"

    def _lost(self) -> OutcomeUnknown:
        return OutcomeUnknown(f"the line to the guest's agent was lost: {self.reason}")

    # -- outgoing

    def write_control(self, frames: bytes) -> None:
        """Send frames before any bulk data that waits; while the line is held, at its release."""
        if self._hold.on:
            self._hold.keep(frames)
        else:
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
        self._unplugged.clear()
        self._turns.resume()
        # A guest that has left a machine stands still until it is told otherwise, but its line can be lost once more.
        self._hold.confirmed = False
        self._reason = None

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
        """The socket is closed: the guest has left, as it was to, or the line is lost."""
        if self._hold.leaving and self._hold.confirmed and not self._ending:
            self._unplugged.set()
        else:
            self._lose(exc)

    def _lose(self, exc: Exception | None) -> None:
        if exc is not None:
            self._reason = self._reason or str(exc)
        error = self._lost()
        error.__cause__ = exc
        self.closed.set()
        self._unplugged.set()
        self._silence.end()
        self._hold.end()
        if not self._welcomed.done():
            self._welcomed.set_exception(error)
            self._welcomed.exception()  # retrieved: nobody may wait for it any more
        for call in list(self._calls.values()):
            call.fail(error)
        self._calls.clear()
        self._turns.wake_all()
