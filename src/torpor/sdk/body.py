"""What is written into a file: text, bytes, an open file or an iterator, all as pieces of a good size."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import IO, Any, cast

from torpor.errors import InvalidRequest

# Large enough that the cost of a piece does not show, small enough that a few of them in flight are nothing.
PIECE_BYTES = 512 * 1024

Piece = str | bytes | bytearray | memoryview
Source = Piece | IO[bytes] | IO[str] | Iterable[Piece]
AsyncSource = Source | AsyncIterable[Piece]


class Body:
    """The bytes of one request. `length` is None where it is not known beforehand.

    `on_sent` is told how many bytes were sent so far, after each piece. Raises InvalidRequest for a source that is none
    of the kinds above.
    """

    def __init__(self, source: AsyncSource, on_sent: Callable[[int], object] | None = None) -> None:
        self.on_sent = on_sent
        whole = _as_whole(source)
        self.length = None if whole is None else len(whole)
        self._whole = whole
        self._source: Any = source
        self._began = False
        self._is_file = whole is None and hasattr(source, "read")
        if whole is None and not self._is_file and not isinstance(source, Iterable | AsyncIterable):
            raise InvalidRequest(
                f"a {type(source).__name__} cannot be written; give text, bytes, a file or an iterator"
            )
        self._start = _position(self._source) if self._is_file else None

    @property
    def replayable(self) -> bool:
        """Whether it can be sent now: always the first time, and again if it is held in memory or can be rewound."""
        return not self._began or self._whole is not None or self._start is not None

    @property
    def blocking(self) -> bool:
        """Whether taking a piece may wait for a disk or a pipe."""
        return self._is_file

    @property
    def answers_later(self) -> bool:
        """Whether its source is an asynchronous iterator."""
        return self._whole is None and not self._is_file and isinstance(self._source, AsyncIterable)

    def begin_async(self) -> AsyncIterable[bytes]:
        """Return the pieces of an asynchronous iterator."""
        self._began = True
        return _encoded_async(self._source)

    def begin(self) -> Iterator[bytes]:
        """Return the pieces, from the start."""
        if self._whole is not None:
            return _cut(self._whole)
        if self._began and self._start is not None:
            self._source.seek(self._start)
        self._began = True
        if self._is_file:
            return _read(self._source)
        return _joined(self._source)


async def async_pieces(body: Body) -> AsyncIterator[bytes]:
    """Yield a body's pieces; where taking one may block, a thread takes it."""
    if body.answers_later:
        async for piece in body.begin_async():
            yield piece
        return
    run, sent = body.begin(), 0
    while piece := await asyncio.to_thread(_following, run) if body.blocking else _following(run):
        yield piece
        sent += len(piece)
        if body.on_sent is not None:
            body.on_sent(sent)


def sync_pieces(body: Body) -> Iterator[bytes]:
    """Return a body's pieces. Raises InvalidRequest for an asynchronous iterator."""
    if body.answers_later:
        raise InvalidRequest("an asynchronous iterator can only be written by AsyncSandbox")
    return body.begin() if body.on_sent is None else _told(body.begin(), body.on_sent)


def _told(pieces: Iterator[bytes], on_sent: Callable[[int], object]) -> Iterator[bytes]:
    sent = 0
    for piece in pieces:
        yield piece
        sent += len(piece)
        on_sent(sent)


def _following(run: Iterator[bytes]) -> bytes:
    return next(run, b"")


def _as_whole(source: object) -> memoryview | None:
    if isinstance(source, str):
        return memoryview(source.encode())
    if isinstance(source, bytes | bytearray | memoryview):
        return memoryview(source).cast("B")
    return None


def _position(source: Any) -> int | None:
    try:
        return int(source.tell()) if source.seekable() else None
    except (AttributeError, OSError):
        return None


def _cut(whole: memoryview) -> Iterator[bytes]:
    for start in range(0, len(whole), PIECE_BYTES):
        yield bytes(whole[start : start + PIECE_BYTES])


def _read(source: IO[bytes] | IO[str]) -> Iterator[bytes]:
    while piece := source.read(PIECE_BYTES):
        yield _encoded(piece)


def _joined(source: Iterable[Piece]) -> Iterator[bytes]:
    held = io.BytesIO()
    for item in source:
        held.write(_encoded(item))
        if held.tell() >= PIECE_BYTES:
            yield held.getvalue()
            held = io.BytesIO()
    if held.tell():
        yield held.getvalue()


async def _encoded_async(source: AsyncIterable[Piece]) -> AsyncIterable[bytes]:
    async for item in source:
        yield _encoded(item)


def _encoded(item: object) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, bytes):
        return item
    if isinstance(item, bytearray | memoryview):
        return bytes(cast("bytes", item))
    raise InvalidRequest(f"what is written has to consist of bytes or text, not of {type(item).__name__}")
