"""A command's output as it arrives: collected up to a bound, handed on whole, and never cut inside a character."""

from __future__ import annotations

import base64
import binascii
import codecs
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ValidationError

from torpor.errors import CommandFailed, ExecTimeout, OutcomeUnknown
from torpor.sdk.results import ExecResult
from torpor.sdk.sse import Event, Unreadable
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


class Started(BaseModel):
    """The `started` event: the guest has the command now."""

    process_id: str


class Output(NamedTuple):
    """What a command wrote: on `stdout` or on `stderr`, and the exact bytes."""

    stream: Literal["stdout", "stderr"]
    data: bytes


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
    """Everything one command has said, as far as there is room."""

    def __init__(self, watchers: Watchers) -> None:
        self._stdout = _Stream(watchers.on_stdout, watchers.binary)
        self._stderr = _Stream(watchers.on_stderr, watchers.binary)

    def add(self, piece: Output) -> Iterator[Delivery]:
        """Take a piece of output in and yield what callbacks are to be given."""
        yield from (self._stdout if piece.stream == "stdout" else self._stderr).add(piece.data)

    def end(self) -> Iterator[Delivery]:
        """Yield what callbacks are to be given when there is no more output."""
        yield from self._stdout.add(b"", final=True)
        yield from self._stderr.add(b"", final=True)

    def result(self, end: StreamExit | None, *, is_whole: bool = True) -> ExecResult:
        """Return how the command ended. `is_whole`: all that the command wrote has come here.

        Raises OutcomeUnknown if it is not known how.
        """
        if end is None:
            raise OutcomeUnknown("the server ended the stream before the command's result")
        return ExecResult(
            stdout=self._stdout.text(),
            stderr=self._stderr.text(),
            exit_code=end.exit_code,
            duration_ms=end.duration_ms,
            truncated=self._stdout.truncated or self._stderr.truncated or not is_whole,
            signal=end.signal,
            oom_killed=end.oom_killed,
            stdout_bytes=bytes(self._stdout.kept),
            stderr_bytes=bytes(self._stderr.kept),
        )

    def give_to(self, error: ExecTimeout) -> None:
        """Let a timeout carry the output so far."""
        error.stdout, error.stderr = self._stdout.text(), self._stderr.text()


def heard(event: Event) -> Output | StreamExit | Started | None:
    """Return what an event says; None for one of a later version, of which nothing is known here.

    Raises the error that the server reports in the stream, and Unreadable for what cannot be read.
    """
    try:
        if event.name == "stdout":
            return Output("stdout", _chunk(event))
        if event.name == "stderr":
            return Output("stderr", _chunk(event))
        if event.name == "started":
            return Started.model_validate_json(event.data)
        if event.name == "exit":
            return StreamExit.model_validate_json(event.data)
        if event.name == "error":
            raise from_body(ErrorBody.model_validate_json(event.data), 500)
    except ValidationError as error:
        raise Unreadable from error
    return None


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
        raise Unreadable from error
