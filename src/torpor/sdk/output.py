"""A command's output as it arrives: collected up to a bound, handed on whole, and never cut inside a character."""

from __future__ import annotations

import base64
import binascii
import codecs
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from torpor.errors import CommandFailed, ExecTimeout, OutcomeUnknown, TorporError
from torpor.sdk.results import ExecResult
from torpor.sdk.sse import Event
from torpor.wire.errors import ErrorBody, from_body
from torpor.wire.public import StreamExit

# Of each of stdout and stderr, what an ExecResult holds at most.
MAX_COLLECTED_BYTES = 64 * 1024 * 1024
_TAIL_LINES = 5
_TAIL_CHARACTERS = 600

Callback = Callable[[Any], object]
Delivery = tuple[Callback, str | bytes]


class _Chunk(BaseModel):
    """The `stdout` and `stderr` events: base64 of the bytes."""

    chunk: str


@dataclass(frozen=True, slots=True)
class Watchers:
    """Who is handed output as it arrives: text, or with `binary` the bytes as they were written."""

    on_stdout: Callback | None = None
    on_stderr: Callback | None = None
    binary: bool = False


class _Stream:
    """One of stdout and stderr."""

    def __init__(self, callback: Callback | None, binary: bool) -> None:
        self.kept = bytearray()
        self.truncated = False
        self._callback = callback
        self._decode = None if binary else codecs.getincrementaldecoder("utf-8")("replace").decode

    def add(self, chunk: bytes, *, final: bool = False) -> Iterator[Delivery]:
        """Keep a chunk as far as there is room and yield what the callback is to be given for it."""
        room = MAX_COLLECTED_BYTES - len(self.kept)
        self.kept += chunk[:room] if len(chunk) > room else chunk
        self.truncated = self.truncated or len(chunk) > room
        if self._callback is not None:
            piece = chunk if self._decode is None else self._decode(chunk, final)
            if piece:
                yield self._callback, piece

    def text(self) -> str:
        return self.kept.decode("utf-8", "replace")


class Transcript:
    """Everything one command has said. Feed it events; `result` is there when the command has ended."""

    def __init__(self, watchers: Watchers) -> None:
        self._stdout = _Stream(watchers.on_stdout, watchers.binary)
        self._stderr = _Stream(watchers.on_stderr, watchers.binary)
        self.exit: StreamExit | None = None

    def feed(self, event: Event) -> Iterator[Delivery]:
        """Take one event in and yield what callbacks are to be given.

        Raises the error that the server reports in the stream, with the output so far where it is a timeout, and
        OutcomeUnknown for an event that this version cannot read.
        """
        try:
            if event.name == "stdout":
                yield from self._stdout.add(_chunk(event))
            elif event.name == "stderr":
                yield from self._stderr.add(_chunk(event))
            elif event.name == "exit":
                self.exit = StreamExit.model_validate_json(event.data)
                yield from self._stdout.add(b"", final=True)
                yield from self._stderr.add(b"", final=True)
            elif event.name == "error":
                raise self._with_output(from_body(ErrorBody.model_validate_json(event.data), 500))
        except ValidationError as error:
            raise OutcomeUnknown("the server's stream of events is not in the form this version reads") from error

    def result(self) -> ExecResult:
        """Return how the command ended. Raises OutcomeUnknown if the stream ended before the command did."""
        if self.exit is None:
            raise OutcomeUnknown("the server ended the stream before the command's result")
        return ExecResult(
            stdout=self._stdout.text(),
            stderr=self._stderr.text(),
            exit_code=self.exit.exit_code,
            duration_ms=self.exit.duration_ms,
            truncated=self._stdout.truncated or self._stderr.truncated,
            signal=self.exit.signal,
            oom_killed=self.exit.oom_killed,
            stdout_bytes=bytes(self._stdout.kept),
            stderr_bytes=bytes(self._stderr.kept),
        )

    def _with_output(self, error: TorporError) -> TorporError:
        if isinstance(error, ExecTimeout):
            error.stdout, error.stderr = self._stdout.text(), self._stderr.text()
        return error


def require_success(result: ExecResult) -> None:
    """Raise CommandFailed, with the end of what the command said on stderr, unless it ended with 0."""
    if result.exit_code == 0:
        return
    how = f"was ended by {result.signal}" if result.signal else f"ended with code {result.exit_code}"
    tail = "\n".join(result.stderr.strip().splitlines()[-_TAIL_LINES:])[-_TAIL_CHARACTERS:]
    raise CommandFailed(
        f"the command {how}: {tail}" if tail else f"the command {how}",
        exit_code=result.exit_code,
        stdout=result.stdout,
        stderr=result.stderr,
        hint="the guest ran out of memory" if result.oom_killed else None,
    )


def _chunk(event: Event) -> bytes:
    try:
        return base64.b64decode(_Chunk.model_validate_json(event.data).chunk, validate=True)
    except binascii.Error as error:
        raise OutcomeUnknown("the server's stream of events is not in the form this version reads") from error
