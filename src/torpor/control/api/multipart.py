"""`multipart/form-data`, read as it arrives: one part after the other, none of them held in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from torpor.errors import InvalidRequest, TooLarge

# A part's headers together, and the number of its headers.
_MAX_HEADER_BYTES = 8 * 1024
_MAX_HEADERS = 16
# What browsers and clients write in the place of characters that would end a name.
_ESCAPED = (("%22", '"'), ("%0D", "\r"), ("%0A", "\n"))


@dataclass
class Part:
    """One part: its name, its headers by their names in lower case, whether it is a file, and its content.

    `chunks` is read once, before the next part is asked for; what is not read of it is dropped.
    """

    name: str
    is_file: bool
    headers: dict[str, str]
    chunks: AsyncIterator[bytes]


@dataclass
class _Head:
    headers: dict[str, str] = field(default_factory=dict)
    name: bytes = b""
    value: bytes = b""

    def end_header(self) -> None:
        self.headers[self.name.decode("latin-1").lower()] = self.value.decode("latin-1")
        self.name = self.value = b""


# What the parser has met: the head of a part, a piece of its content, or (None) its end.
_Met = _Head | bytes | None


class Multipart:
    """The parts of a body of this `content_type`. Raises InvalidRequest for what cannot be read as one."""

    def __init__(self, content_type: str, body: AsyncIterator[bytes]) -> None:
        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if not boundary:
            raise InvalidRequest("Content-Type: multipart/form-data has no boundary")
        self._body = body
        self._met: deque[_Met] = deque()
        self._head = _Head()
        self._has_ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._name,
                "on_header_value": self._value,
                "on_header_end": self._end_header,
                "on_headers_finished": lambda: self._met.append(self._head),
                "on_part_data": lambda data, start, end: self._met.append(data[start:end]),
                "on_part_end": lambda: self._met.append(None),
                "on_end": self._end,
            },
            max_header_count=_MAX_HEADERS,
            max_header_size=_MAX_HEADER_BYTES,
        )

    async def parts(self, most: int) -> AsyncGenerator[Part, None]:
        """Yield the parts as they arrive. Raises TooLarge for more than `most`, InvalidRequest for a body cut short."""
        count = 0
        while (head := await self._next()) is not _OVER:
            if not isinstance(head, _Head):
                continue  # left over of a part that was not read to its end
            count += 1
            if count > most:
                raise TooLarge(f"the body has more than {most} parts")
            name, is_file = _named(head.headers.get("content-disposition", ""))
            yield Part(name, is_file, head.headers, self._content())

    async def _content(self) -> AsyncGenerator[bytes, None]:
        while isinstance(met := await self._next(), bytes):
            yield met

    async def _next(self) -> _Met | object:
        while not self._met:
            if self._has_ended:
                return _OVER
            chunk = await anext(self._body, None)
            if chunk is None:
                raise InvalidRequest("the body ends before its last part does")
            try:
                self._parser.write(chunk)
            except FormParserError as error:
                raise InvalidRequest(f"the body cannot be read as multipart/form-data: {error}") from error
        return self._met.popleft()

    def _begin(self) -> None:
        self._head = _Head()

    def _name(self, data: bytes, start: int, end: int) -> None:
        self._head.name += data[start:end]

    def _value(self, data: bytes, start: int, end: int) -> None:
        self._head.value += data[start:end]

    def _end_header(self) -> None:
        self._head.end_header()

    def _end(self) -> None:
        self._has_ended = True


_OVER = object()


def _named(disposition: str) -> tuple[str, bool]:
    """Return the name that a part's Content-Disposition gives it, and whether it is a file."""
    kind, options = parse_options_header(disposition.encode("latin-1"))
    raw = options.get(b"name")
    if kind != b"form-data" or not raw:
        raise InvalidRequest("a part of the body has no name (Content-Disposition: form-data; name=...)")
    try:
        name = raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("the name of a part of the body is not UTF-8") from error
    for escaped, character in _ESCAPED:
        name = name.replace(escaped, character)
    return name, b"filename" in options
