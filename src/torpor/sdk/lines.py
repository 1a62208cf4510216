"""Lines, read from bytes however they are cut."""

from __future__ import annotations

from collections.abc import Iterator

from torpor.errors import OutcomeUnknown

# A line describes one file; a path is at most 4 KiB, and six bytes a character when it is escaped.
MAX_LINE_BYTES = 256 * 1024


class LineReader:
    """Turns bytes into lines, without their newlines. Empty ones are skipped."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines that `chunk` completes. Raises OutcomeUnknown for one beyond MAX_LINE_BYTES."""
        *whole, self._held = (self._held + chunk).split(b"\n")
        yield from filter(None, whole)
        if len(self._held) > MAX_LINE_BYTES:
            raise OutcomeUnknown("the server's listing is not in the form this version reads")
