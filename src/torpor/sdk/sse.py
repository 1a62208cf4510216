"""Server-sent events, read from bytes however they are cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torpor.errors import OutcomeUnknown

# A server's chunk is at most 1 MiB, base64 makes it 1.4 MiB: what is longer is no event of ours.
MAX_EVENT_BYTES = 8 * 1024 * 1024


class Unreadable(ValueError):
    """A stream is not in the form that this version reads. To ask for it again would bring the same."""

    def told(self) -> OutcomeUnknown:
        """Return what a caller is told."""
        return OutcomeUnknown(
            "the server's stream of events is not in the form this version reads",
            hint="are client and server of the same version?",
        )


class Event(NamedTuple):
    """One event: its name, its data lines, joined by newlines, and its id, if it has one."""

    name: str
    data: bytes
    id: str = ""


class EventReader:
    """Turns bytes into events. Comment lines, which keep the line alive, are skipped."""

    def __init__(self, most: int = MAX_EVENT_BYTES) -> None:
        self._most = most
        self._held = bytearray()
        self._name, self._id = "message", ""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that `chunk` completes. Raises Unreadable for an event beyond `most` bytes."""
        self._held += chunk
        start = 0
        while (end := self._held.find(b"\n", start)) >= 0:
            line = bytes(self._held[start:end]).removesuffix(b"\r")
            start = end + 1
            if (event := self._line(line)) is not None:
                yield event
        del self._held[:start]
        if len(self._held) > self._most:
            raise Unreadable

    def _line(self, line: bytes) -> Event | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._name = value.removeprefix(b" ").decode(errors="replace")
        elif field == b"id":
            self._id = value.removeprefix(b" ").decode(errors="replace")
        return None

    def _dispatch(self) -> Event | None:
        event = Event(self._name, b"\n".join(self._data), self._id) if self._data else None
        self._name, self._id, self._data = "message", "", []
        return event
