"""A byte stream of typed frames inside one HTTP body: how command output crosses exactly, without encodings.

Frame: one byte of kind, four bytes of length (big-endian), the payload. STDOUT and STDERR carry bytes as the command
wrote them, EXIT a JSON `host.ExecOutcome` and ends the stream, ERROR a JSON `errors.ErrorBody` and ends it.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from enum import IntEnum
from typing import NamedTuple

from torpor.errors import OutcomeUnknown

MEDIA_TYPE = "application/vnd.torpor.frames"
MAX_PAYLOAD = 1024 * 1024
_HEADER = struct.Struct(">BI")


class Kind(IntEnum):
    """What a frame carries."""

    STDOUT = 1
    STDERR = 2
    EXIT = 3
    ERROR = 4


class Frame(NamedTuple):
    """One frame."""

    kind: Kind
    payload: bytes = b""


def encode(frame: Frame) -> bytes:
    """Return the frame as bytes. The payload is at most MAX_PAYLOAD."""
    return _HEADER.pack(frame.kind, len(frame.payload)) + frame.payload


async def decode(chunks: AsyncIterator[bytes]) -> AsyncIterator[Frame]:
    """Yield the frames in a byte stream, however it is cut.

    Raises OutcomeUnknown where it is malformed or ends inside a frame. Whether an EXIT or ERROR came is for the caller
    to see.
    """
    held = bytearray()
    async for chunk in chunks:
        held += chunk
        while (frame := _take(held)) is not None:
            yield frame
    if held:
        raise OutcomeUnknown("the stream of the command's output broke off inside a frame")


def _take(held: bytearray) -> Frame | None:
    if len(held) < _HEADER.size:
        return None
    kind, length = _HEADER.unpack_from(held)
    if kind not in Kind.__members__.values() or length > MAX_PAYLOAD:
        raise OutcomeUnknown("the stream of the command's output is not in the form this version reads")
    end = _HEADER.size + length
    if len(held) < end:
        return None
    with memoryview(held) as view:
        payload = bytes(view[_HEADER.size : end])  # one copy: slicing the bytearray itself would make two
    del held[:end]
    return Frame(Kind(kind), payload)
