"""The protocol between the host and the guest's agent, version 5. Pure: bytes in, bytes out, no I/O.

The line is a byte stream in each direction that may have lost bytes, or hold stale ones, whenever the host connects
anew.

Synchronise. The host sends PREAMBLE and a HELLO. PREAMBLE is zeros enough to fill up any frame that was cut off, and
one header more; such a frame ends in a wrong trailer and is thrown away, and what follows is no header, so the guest
looks for the next HELLO. At every valid HELLO the guest forgets all calls of the former connection (commands run on,
and jobs keep their output, while that of others is discarded; transfers are aborted) and answers WELCOME with the same
nonce. The host throws everything away until it finds that nonce.

    HELLO    magic 16 | version u16 | nonce 16 | crc32 u32
    WELCOME  magic 16 | version u16 | nonce 16 | length u32 | JSON | crc32 u32

These two keep their form in all versions. A side that does not speak the other's version says so and goes no further:
the guest by the `refused` sentence in its WELCOME.

Frame. All numbers big-endian; payload of at most MAX_PAYLOAD bytes; the trailer is not zero.

    stream u32 | type u8 | sub u8 | length u32 | check u16 | payload | trailer u8

`check` is the low half of the crc32 of the ten bytes before it, so garbage is recognised at once.

Types, H from the host, G from the guest. A stream is one call; its id is odd, chosen by the host, ever larger.

    OPEN    H   a JSON request with its `op`. sub MORE: another part of it follows; sub LAST: it is complete
    DATA    HG  bytes: sub INPUT to the guest (stdin, keys, upload); OUTPUT (stdout, a terminal's screen, download,
                lines of JSON) and ERRORS (stderr) from it
    END     H   sub INPUT: no more of it comes
    CREDIT  HG  u32: so many more bytes of `sub` may be sent
    RESULT  G   a JSON object, in parts like OPEN; the call is over
    ERROR   G   a JSON object {code, message, hint}; the call is over. On stream 0: the host broke the protocol,
                nothing more comes
    CANCEL  H   the host gives up: the guest kills the command (a job is left alone), aborts the transfer or closes the
                connection, and still answers RESULT or ERROR
    READY   G   of a `dial` only, once, before any DATA: it is connected

Flow control. Each sub-channel of each stream starts with WINDOW bytes of credit; DATA uses it up, and the receiver
gives it back as the bytes are really consumed. Frames for a stream that is over are ignored by the guest, which
cannot know what the host had sent before it heard; towards the host they are a breach of the protocol, like data
without credit, a wrong header or malformed JSON, and the host closes the connection.

Freeze. `quiesce` is the last thing a host sends before the machine is stopped; of calls under way it keeps back what it
has to send. If the machine is ended, whatever the guest had sent of its last frame was read by the host, and the rest
of it comes first when the guest goes on elsewhere, where the host may go on without a greeting.

Paths and file names are bytes; in JSON they stand as `torpor_guest.names` writes them.
"""

from __future__ import annotations

import json
import struct
from binascii import crc32
from collections.abc import Callable
from typing import Any, Final, NamedTuple

VERSION: Final = 5

OPEN: Final = 1
DATA: Final = 2
END: Final = 3
CREDIT: Final = 4
RESULT: Final = 5
ERROR: Final = 6
CANCEL: Final = 7
READY: Final = 8

INPUT: Final = 0
OUTPUT: Final = 1
ERRORS: Final = 2

LAST: Final = 0
MORE: Final = 1

# A whole frame is 32 KiB at most: the size at which virtio-serial is fastest on both ends.
MAX_FRAME: Final = 32 * 1024
TRAILER: Final = 0xD7
_TRAILER: Final = bytes((TRAILER,))
# What is best received at once, measured on both ends of virtio-serial; much more and much less are slower.
READ_SIZE: Final = 64 * 1024
_FRONT = struct.Struct(">IBBI")
_HEADER = struct.Struct(">IBBIH")
_NUMBER = struct.Struct(">I")
_CHECK = struct.Struct(">H")
HEADER_SIZE: Final = _HEADER.size
OVERHEAD: Final = HEADER_SIZE + 1
MAX_PAYLOAD: Final = MAX_FRAME - OVERHEAD

# Bytes that may be under way on one sub-channel of one stream; enough to keep the line busy at 150 MB/s and 1.5 ms
# there and back.
WINDOW: Final = 256 * 1024
# Credit goes back in pieces of this size, so that it costs one small frame for two big ones.
CREDIT_STEP: Final = 64 * 1024
MAX_STREAMS: Final = 1024
# A request or a result, all parts together.
MAX_REQUEST: Final = 4 * 1024 * 1024
MAX_RESULT: Final = 256 * 1024
MAX_FEATURES: Final = 4096

PREAMBLE: Final = bytes(MAX_FRAME + HEADER_SIZE)
NONCE_SIZE: Final = 16
_HELLO_MAGIC: Final = b"\xf7torpor-hello\xf0\x9f\r"
_WELCOME_MAGIC: Final = b"\xf7torpor-welcom\xf1\n"
_HELLO = struct.Struct(">16sH16sI")
_WELCOME = struct.Struct(">16sH16sI")


class ProtocolError(Exception):
    """The other side sent what this version does not allow; the text is one sentence for a log."""


class Frame(NamedTuple):
    """One frame. `payload` is a view into what was received, good until more is received."""

    stream: int
    type: int
    sub: int
    payload: memoryview


class Hello(NamedTuple):
    """The host's greeting."""

    version: int
    nonce: bytes


class Welcome(NamedTuple):
    """The guest's answer to a greeting. `features` is empty where the version is not ours."""

    version: int
    nonce: bytes
    features: dict[str, Any]


def header(stream: int, kind: int, sub: int, length: int) -> bytes:
    """Return a frame's header."""
    front = _FRONT.pack(stream, kind, sub, length)
    return front + _CHECK.pack(crc32(front) & 0xFFFF)


def frame(stream: int, kind: int, sub: int = 0, payload: bytes | memoryview = b"") -> bytes:
    """Return a whole frame. The payload is at most MAX_PAYLOAD."""
    return b"".join((header(stream, kind, sub, len(payload)), payload, _TRAILER))


def credit(stream: int, sub: int, count: int) -> bytes:
    """Return a CREDIT frame."""
    return frame(stream, CREDIT, sub, _NUMBER.pack(count))


def message(stream: int, kind: int, value: dict[str, Any]) -> bytes:
    """Return a JSON message (OPEN, RESULT or ERROR) as one or several frames."""
    body = dump(value)
    cuts = range(0, max(len(body), 1), MAX_PAYLOAD)
    parts = [body[cut : cut + MAX_PAYLOAD] for cut in cuts]
    return b"".join(frame(stream, kind, MORE, part) for part in parts[:-1]) + frame(stream, kind, LAST, parts[-1])


def credit_count(payload: memoryview) -> int:
    """Return what a CREDIT frame gives, 1 to WINDOW. Raises ProtocolError."""
    if len(payload) != _NUMBER.size:
        raise ProtocolError("a credit of the wrong length")
    count: int = _NUMBER.unpack(payload)[0]
    if not 0 < count <= WINDOW:
        raise ProtocolError(f"a credit of {count} bytes")
    return count


def dump(value: dict[str, Any]) -> bytes:
    """Return a JSON object as UTF-8."""
    return _ENCODER.encode(value).encode("utf-8", "replace")


def load(body: bytes | bytearray) -> dict[str, Any]:
    """Read a JSON object. Raises ProtocolError for anything else."""
    try:
        value = _DECODER.decode(body.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a message that is no JSON") from error
    if not isinstance(value, dict):
        raise ProtocolError("a message that is no JSON object")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


# Made once: the functions of the json module make one for every call with options, which costs more than the work
# itself.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def hello(nonce: bytes, version: int = VERSION) -> bytes:
    """Return a HELLO. The host sends it after PREAMBLE."""
    front = _HELLO.pack(_HELLO_MAGIC, version, nonce, 0)[:-4]
    return front + _NUMBER.pack(crc32(front))


def welcome(nonce: bytes, features: dict[str, Any], version: int = VERSION) -> bytes:
    """Return a WELCOME."""
    body = dump(features)
    front = _WELCOME.pack(_WELCOME_MAGIC, version, nonce, len(body)) + body
    return front + _NUMBER.pack(crc32(front))


Greeting = Hello | Welcome
# Looks for a greeting between two offsets of a buffer. Returns it, or None, and where to go on: with None, all before
# is garbage.
Seek = Callable[[bytearray, int, int], tuple[Greeting | None, int]]


def seek_hello(data: bytearray, at: int, end: int) -> tuple[Greeting | None, int]:
    """Find the first valid HELLO; what the guest's parser looks for."""
    while (at := _find_magic(data, at, end, _HELLO_MAGIC)) + _HELLO.size <= end:
        _, version, nonce, check = _HELLO.unpack_from(data, at)
        if crc32(data[at : at + _HELLO.size - 4]) == check:
            return Hello(version, nonce), at + _HELLO.size
        at += 1
    return None, at


def seek_welcome(nonce: bytes) -> Seek:
    """Return what the host's parser looks for: the WELCOME that carries `nonce`."""

    def seek(data: bytearray, at: int, end: int) -> tuple[Greeting | None, int]:
        while (at := _find_magic(data, at, end, _WELCOME_MAGIC)) + _WELCOME.size <= end:
            _, version, found, length = _WELCOME.unpack_from(data, at)
            body = at + _WELCOME.size
            after = body + length + 4
            if found == nonce and length <= MAX_FEATURES:
                if after > end:
                    return None, at
                if crc32(data[at : after - 4]) == _NUMBER.unpack_from(data, after - 4)[0]:
                    return Welcome(version, nonce, load(data[body : after - 4])), after
            at += 1
        return None, at

    return seek


def _find_magic(data: bytearray, at: int, end: int, magic: bytes) -> int:
    """Return where the magic stands, or where its beginning may stand at the end of the data."""
    found = data.find(magic, at, end)
    return found if found >= 0 else max(at, end - len(magic) + 1)


class Parser:
    """Cuts greetings and frames out of a byte stream, however it arrives, without copying it.

    Bytes are received straight into `room()`; `take` returns what they complete. While `lost` is true (as at first)
    it looks for a greeting and drops everything else. It becomes lost at the first thing that is no frame; whether
    that is an accident or a breach is for the caller to say.
    """

    def __init__(self, seek: Seek) -> None:
        self.lost = True
        self._seek = seek
        # New bytes always come in at the same place, and what is left of the old ones, which is less than one frame, is
        # moved to right before it.
        self._buffer = bytearray(MAX_FRAME + READ_SIZE)
        self._view = memoryview(self._buffer)
        self._left = (MAX_FRAME, MAX_FRAME)
        self._room = self._view[MAX_FRAME:]

    def room(self) -> memoryview:
        """Return where to receive the next bytes. This ends the life of the payloads that `take` returned before."""
        start, end = self._left
        held = end - start
        self._view[MAX_FRAME - held : MAX_FRAME] = self._view[start:end]
        self._left = (MAX_FRAME - held, MAX_FRAME)
        return self._room

    def take(self, count: int) -> list[Frame | Greeting]:
        """Say that `count` bytes were received into `room()`; return what is complete, in order.

        The payloads are views that are good until `room` is called again.
        """
        found: list[Frame | Greeting] = []
        end = MAX_FRAME + count
        self._left = (self._cut(self._left[0], end, found), end)
        return found

    def _cut(self, at: int, end: int, found: list[Frame | Greeting]) -> int:
        """Return where what is not complete begins."""
        buffer, view = self._buffer, self._view
        while True:
            if self.lost:
                greeting, at = self._seek(buffer, at, end)
                if greeting is None:
                    return at
                self.lost = greeting.version != VERSION
                found.append(greeting)
                continue
            if end - at < HEADER_SIZE:
                return at
            stream, kind, sub, length, check = _HEADER.unpack_from(buffer, at)
            if not OPEN <= kind <= READY or length > MAX_PAYLOAD or crc32(view[at : at + 10]) & 0xFFFF != check:
                self.lost = True
                continue
            after = at + OVERHEAD + length
            if after > end:
                return at
            if buffer[after - 1] != TRAILER:
                self.lost = True
                continue
            found.append(Frame(stream, kind, sub, view[at + HEADER_SIZE : after - 1]))
            at = after
