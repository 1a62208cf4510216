"""The line to the host: frames in and out, streams, flow control, and starting afresh when the host does.

Outgoing frames are made one at a time, when the line can take one: first what is in `_control` (answers, credit),
then one frame of the next source in turn. So a client that reads slowly costs no memory, and no stream waits for more
than one frame of another.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from torpor_guest import protocol
from torpor_guest.loop import EDGE, IN, OUT, Loop, report_fault
from torpor_guest.protocol import Frame, Hello, ProtocolError
from torpor_guest.refusal import Refusal

# The kernel's buffer for a port: one read gives no more than one of them.
_PORT_BUFFER = 4096
# Frames sent in one turn of the loop before others get theirs.
_BURST = 8


class Operation(Protocol):
    """What runs on a stream. Each of these may be called at any time until the stream is closed."""

    def on_data(self, payload: memoryview) -> None:
        """Take bytes of INPUT, good for this call only; whoever really consumes them calls `Stream.consumed`."""

    def on_end(self) -> None:
        """No more INPUT comes."""

    def on_cancel(self) -> None:
        """The host gives up; the stream has still to be closed by a result or an error."""

    def on_drop(self) -> None:
        """The host's connection is gone, and with it the stream."""


class SendsOnly:
    """The part of an operation that expects nothing from the host: what comes is taken and forgotten."""

    _stream: Stream

    def on_data(self, payload: memoryview) -> None:
        self._stream.consumed(len(payload))

    def on_end(self) -> None:
        """Nothing was expected."""


class Source(Protocol):
    """Where the bytes of one outgoing sub-channel come from."""

    @property
    def sub(self) -> int:
        """The sub-channel."""

    def fill(self, room: memoryview) -> int:
        """Put bytes in and return how many; 0 to be left alone until `Stream.ready`. May close the stream."""


class Stream:
    """One call of the host."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.number = number
        self.open = True
        self.operation: Operation | None = None
        self.input_ended = False
        self.credit = [0, protocol.WINDOW, protocol.WINDOW]
        self.window = protocol.WINDOW
        self._connection = connection
        self._consumed = 0
        self._starved: dict[int, Source] = {}

    def consumed(self, count: int) -> None:
        """Give the host credit for `count` bytes of INPUT that are dealt with."""
        self._consumed += count
        if self._consumed >= protocol.CREDIT_STEP and self.open and not self.input_ended:
            self.window += self._consumed
            self._connection.queue(protocol.credit(self.number, protocol.INPUT, self._consumed))
            self._consumed = 0

    def ready(self, source: Source) -> None:
        """Say that `source` has bytes, or wants to look."""
        if self.open:
            self._connection.line_up(self, source)

    def starve(self, source: Source) -> None:
        """Put a source aside until the host gives credit."""
        self._starved[source.sub] = source

    def grant(self, sub: int, count: int) -> None:
        """Take credit from the host. Raises ProtocolError if it exceeds the window."""
        self.credit[sub] += count
        if self.credit[sub] > protocol.WINDOW:
            raise ProtocolError("credit beyond the window")
        source = self._starved.pop(sub, None)
        if source is not None:
            self.ready(source)

    def send(self, sub: int, data: bytes) -> None:
        """Send a few bytes now; for sentences of our own, before any source of `sub` was used."""
        if self.open:
            self.credit[sub] -= len(data)
            self._connection.queue(protocol.frame(self.number, protocol.DATA, sub, data))

    def begun(self) -> None:
        """Say that what the call waited for is there."""
        if self.open:
            self._connection.queue(protocol.frame(self.number, protocol.READY))

    def result(self, value: dict[str, Any]) -> None:
        """Close the stream with a result."""
        self._close(protocol.RESULT, value)

    def refuse(self, refusal: Refusal) -> None:
        """Close the stream with an error."""
        self._close(protocol.ERROR, dict(refusal.body()))

    def _close(self, kind: int, value: dict[str, Any]) -> None:
        if self.open:
            self.open = False
            self._connection.queue(protocol.message(self.number, kind, value))
            self._connection.forget(self)


class Connection:
    """Serves the host on one descriptor. `serve` is called with each new stream and its request.

    `lasting`: the descriptor is a port that outlives its hosts, so an end of file means that none is connected now.
    Otherwise `on_gone` is called.
    """

    def __init__(self, loop: Loop, fd: int, *, lasting: bool, features: dict[str, Any]) -> None:
        self.serve: Callable[[Stream, dict[str, Any]], None]
        self.on_gone: Callable[[], None] = loop.stop
        self._loop, self._fd, self._lasting, self._features = loop, fd, lasting, features
        self._parser = protocol.Parser(protocol.seek_hello)
        # A readv on a port fills them one by one and stops at the first that stays short: sixteen reads for one
        # system call.
        room = self._parser.room()
        self._rooms = [room[at : at + _PORT_BUFFER] for at in range(0, protocol.READ_SIZE, _PORT_BUFFER)]
        self._streams: dict[int, Stream] = {}
        self._last_number = 0
        self._parts: dict[int, bytearray] = {}
        self._broken = False
        self._control: deque[bytes] = deque()
        self._turns: deque[tuple[Stream, Source]] = deque()
        self._lined_up: set[Source] = set()
        self._out: memoryview | None = None
        # The one frame of bulk data under way; sources read straight into it.
        self._frame = bytearray(protocol.MAX_FRAME)
        self._view = memoryview(self._frame)
        self._events = IN
        os.set_blocking(fd, False)
        loop.watch(fd, IN, self._on_event)
        loop.flush = self.flush

    # -- incoming

    def _on_event(self, events: int) -> None:
        if events & ~OUT:
            self._receive()

    def _receive(self) -> None:
        self._parser.room()
        try:
            size = os.readv(self._fd, self._rooms)
        except BlockingIOError:
            return
        except ConnectionResetError:
            size = 0
        if size == 0:
            self._no_host()
            return
        if self._events & EDGE:
            self._listen(IN)
        for item in self._parser.take(size):
            if isinstance(item, Hello):
                self._greet(item)
            elif isinstance(item, Frame) and not self._broken:
                self._take(item)

    def _no_host(self) -> None:
        if self._lasting:
            # The port reports its hang-up at every poll; only changes are of interest until bytes come again.
            if not self._events & EDGE:
                self._listen(IN | OUT | EDGE)
            return
        self._loop.unwatch(self._fd)
        self._reset()
        self.on_gone()

    def _greet(self, hello: Hello) -> None:
        self._reset()
        features = dict(self._features)
        if hello.version != protocol.VERSION:
            features["refused"] = (
                f"the guest's agent speaks protocol version {protocol.VERSION}, not {hello.version} as the host does"
            )
        self.queue(protocol.welcome(hello.nonce, features))

    def _reset(self) -> None:
        streams = list(self._streams.values())
        self._streams.clear()
        self._parts.clear()
        self._control.clear()
        self._turns.clear()
        self._lined_up.clear()
        self._out, self._last_number, self._broken = None, 0, False
        for stream in streams:
            stream.open = False
            if stream.operation is not None:
                self._guard(stream, stream.operation.on_drop)

    def _take(self, frame: Frame) -> None:
        try:
            if frame.type == protocol.OPEN:
                self._take_open(frame)
            elif (stream := self._streams.get(frame.stream)) is not None:
                self._take_for(stream, frame)
            elif frame.stream > self._last_number:
                self._break("a frame for a stream that was never opened")
        except ProtocolError as error:
            self._break(str(error))
        except Exception as error:
            report_fault()
            self._break(f"the guest's agent failed: {type(error).__name__}")

    def _break(self, reason: str) -> None:
        """Nothing that follows can be trusted; say so and wait for the next greeting."""
        self._reset()
        self._broken = True
        self.queue(protocol.message(0, protocol.ERROR, {"code": "failed", "message": reason, "hint": None}))

    def _take_open(self, frame: Frame) -> None:
        number = frame.stream
        parts = self._parts.get(number)
        if parts is None:
            if number <= self._last_number or number % 2 == 0:
                raise ProtocolError(f"a new stream with the number {number}")
            self._last_number = number
            parts = self._parts[number] = bytearray()
        parts += frame.payload
        if len(parts) > protocol.MAX_REQUEST:
            raise ProtocolError("a request of more than 4 MiB")
        if frame.sub == protocol.MORE:
            return
        del self._parts[number]
        stream = Stream(self, number)
        request = protocol.load(parts)
        if len(self._streams) >= protocol.MAX_STREAMS:
            stream.refuse(Refusal("busy", f"{protocol.MAX_STREAMS} calls are under way in this sandbox already"))
            return
        self._streams[number] = stream
        self._guard(stream, lambda: self.serve(stream, request))

    def _take_for(self, stream: Stream, frame: Frame) -> None:
        if frame.type == protocol.DATA:
            size = len(frame.payload)
            if frame.sub != protocol.INPUT or stream.input_ended or size > stream.window:
                raise ProtocolError("data that no credit was given for")
            stream.window -= size
        elif frame.type == protocol.CREDIT:
            if frame.sub not in (protocol.OUTPUT, protocol.ERRORS):
                raise ProtocolError("credit for no sub-channel of the guest")
            stream.grant(frame.sub, protocol.credit_count(frame.payload))
            return
        elif frame.type == protocol.END:
            stream.input_ended = True
        elif frame.type != protocol.CANCEL:
            raise ProtocolError(f"a frame of type {frame.type} from the host")
        operation = stream.operation
        if operation is None:
            return
        if frame.type == protocol.DATA:
            self._guard(stream, lambda: operation.on_data(frame.payload))
        else:
            self._guard(stream, operation.on_end if frame.type == protocol.END else operation.on_cancel)

    def _guard(self, stream: Stream, call: Callable[[], object]) -> None:
        """Run code of an operation. What it raises ends its own stream only."""
        try:
            call()
        except ProtocolError:
            raise
        except Refusal as refusal:
            stream.refuse(refusal)
        except Exception as error:
            report_fault()
            stream.refuse(Refusal("failed", f"the guest's agent failed: {type(error).__name__}"))

    # -- outgoing

    def queue(self, frames: bytes) -> None:
        """Send whole frames before any bulk data."""
        self._control.append(frames)

    def forget(self, stream: Stream) -> None:
        """Drop a stream that was closed."""
        self._streams.pop(stream.number, None)

    def line_up(self, stream: Stream, source: Source) -> None:
        """Give a source its turn."""
        if source not in self._lined_up:
            self._lined_up.add(source)
            self._turns.append((stream, source))

    def flush(self) -> bool:
        """Send what there is, as far as the line takes it and for a limited time.

        Returns True if there is more to try.
        """
        for _ in range(_BURST):
            if self._out is None:
                self._out = self._next()
            if self._out is None:
                if self._events & OUT and not self._events & EDGE:
                    self._listen(IN)
                return False
            try:
                sent = os.write(self._fd, self._out[: protocol.MAX_FRAME])
            except BlockingIOError:
                if not self._events & OUT:
                    self._listen(IN | OUT)
                return False
            except (BrokenPipeError, ConnectionResetError):
                self._out = None  # the read side tells that nobody is there
                return False
            self._out = self._out[sent:] if sent < len(self._out) else None
        return True

    def _listen(self, events: int) -> None:
        self._events = events
        self._loop.change(self._fd, events)

    def _next(self) -> memoryview | None:
        if self._control:
            frames = b"".join(self._control) if len(self._control) > 1 else self._control[0]
            self._control.clear()
            return memoryview(frames)
        while self._turns:
            stream, source = self._turns.popleft()
            self._lined_up.discard(source)
            if not stream.open:
                continue
            credit = stream.credit[source.sub]
            if credit == 0:
                stream.starve(source)
                continue
            size = self._fill(stream, source, min(credit, protocol.MAX_PAYLOAD))
            if size:
                self.line_up(stream, source)
                return self._finish(stream, source.sub, size)
            if self._control:
                return self._next()
        return None

    def _fill(self, stream: Stream, source: Source, limit: int) -> int:
        size = 0

        def fill() -> None:
            nonlocal size
            size = source.fill(self._view[protocol.HEADER_SIZE : protocol.HEADER_SIZE + limit])

        self._guard(stream, fill)
        return size

    def _finish(self, stream: Stream, sub: int, size: int) -> memoryview:
        stream.credit[sub] -= size
        end = protocol.HEADER_SIZE + size
        self._frame[: protocol.HEADER_SIZE] = protocol.header(stream.number, protocol.DATA, sub, size)
        self._frame[end] = protocol.TRAILER
        return self._view[: end + 1]
