"""What a cell of a code context came to: what it wrote, what it showed, and how it ended."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ValidationError

from torpor.errors import ExecTimeout, InterpreterLost, InvalidRequest, TorporError
from torpor.model.ids import is_context_id
from torpor.sdk.foreign import checked
from torpor.sdk.http import STREAM_SILENCE_S, Call
from torpor.sdk.output import MAX_COLLECTED_BYTES, Callback
from torpor.sdk.sse import Event, Unreadable
from torpor.wire.errors import ErrorBody, from_body
from torpor.wire.repl import MAX_RESULT_BYTES, MAX_RESULTS_BYTES, CellEnd, NewSession, RunCode

# The largest event of a cell: a bundle, and what is around it.
MAX_EVENT_BYTES = MAX_RESULT_BYTES + 1024 * 1024


@dataclass(frozen=True)
class Result:
    """One value that a cell showed, in all its forms: `data` has texts by MIME type, bytes in them as base64.

    `png` and `jpeg` are bytes; each form is None where the value has none.
    """

    data: Mapping[str, str]

    @property
    def text(self) -> str | None:
        """Its `repr`."""
        return self.data.get("text/plain")

    @property
    def html(self) -> str | None:
        """As HTML, such as the table of a pandas frame."""
        return self.data.get("text/html")

    @property
    def markdown(self) -> str | None:
        """As Markdown."""
        return self.data.get("text/markdown")

    @property
    def svg(self) -> str | None:
        """As an SVG picture."""
        return self.data.get("image/svg+xml")

    @property
    def png(self) -> bytes | None:
        """As a PNG picture, such as a matplotlib figure."""
        return _bytes_of(self.data.get("image/png"))

    @property
    def jpeg(self) -> bytes | None:
        """As a JPEG picture."""
        return _bytes_of(self.data.get("image/jpeg"))

    @property
    def json(self) -> Any:
        """As what its JSON says."""
        told = self.data.get("application/json")
        return None if told is None else json.loads(told)


@dataclass(frozen=True)
class Execution:
    """How a cell ended, what it wrote and what it showed.

    `exit_code`: 0, or 1 if it raised, 130 if it was interrupted, or what it gave to `sys.exit`. `error` is the
    traceback of what it raised, and `error_name` the exception's name; both are None if it raised nothing.
    `truncated`: a stream was longer than 64 MiB, or a result was too large and is left out. `execution_count`: the
    number of the cell in its context, from 1 on.
    """

    results: tuple[Result, ...]
    stdout: str
    stderr: str
    exit_code: int
    duration_ms: int
    execution_count: int
    error: str | None = None
    error_name: str | None = None
    truncated: bool = False

    @property
    def text(self) -> str | None:
        """The text of the last result that has one; None without results."""
        return next((result.text for result in reversed(self.results) if result.text is not None), None)

    @property
    def html(self) -> str | None:
        """The first result's HTML that there is."""
        return next((result.html for result in self.results if result.html is not None), None)

    @property
    def png(self) -> bytes | None:
        """The first PNG picture that there is."""
        return next((png for result in self.results if (png := result.png) is not None), None)


class Watching(NamedTuple):
    """Who is handed what a cell writes, as text, and shows, as a Result, when it comes."""

    on_stdout: Callback | None = None
    on_stderr: Callback | None = None
    on_result: Callback | None = None


class Delivery(NamedTuple):
    """A piece that a callback is to be given."""

    callback: Callback
    piece: Any


class _Chunk(BaseModel):
    chunk: str


class _Shown(BaseModel):
    data: dict[str, str]


@dataclass
class _Stream:
    """What was written on one stream, as far as there is room; `said` counts characters, `again` those of this line."""

    callback: Callback | None
    parts: list[str] = field(default_factory=list)
    room: int = MAX_COLLECTED_BYTES
    said: int = 0
    again: int = 0
    is_cut: bool = False

    def add(self, text: str) -> Iterator[Delivery]:
        known = min(len(text), max(0, self.said - self.again))
        self.again += len(text)
        new = text[known:]
        self.said += len(new)
        self.is_cut = self.is_cut or len(new) > self.room
        self.parts.append(new[: self.room])
        self.room -= min(self.room, len(new))
        if new and self.callback is not None:
            yield Delivery(self.callback, new)


class Running:
    """One cell as far as it was listened to. Each line tells it from its beginning; what is known is passed over."""

    def __init__(self, path: str, order: RunCode, watching: Watching) -> None:
        self.end: CellEnd | None = None
        self._path, self._order, self._key = path, order, secrets.token_hex(16)
        self._streams = {"stdout": _Stream(watching.on_stdout), "stderr": _Stream(watching.on_stderr)}
        self._on_result = watching.on_result
        self._results: list[Result] = []
        self._room = MAX_RESULTS_BYTES
        self._is_cut = False
        self._shown = self._shown_again = 0

    def call(self) -> Call:
        """Return the call that runs it, or listens to it where it was run by an earlier one."""
        content = self._order.model_dump_json(exclude_none=True).encode()
        headers = {"Idempotency-Key": self._key}
        for stream in self._streams.values():
            stream.again = 0
        self._shown_again = 0
        return Call("POST", f"{self._path}/run/stream", content=content, headers=headers, silence_s=STREAM_SILENCE_S)

    def take(self, event: Event) -> Iterator[Delivery]:
        """Take an event in, and yield what callbacks are to be given.

        Raises the error that the server reports, and Unreadable for what cannot be read.
        """
        try:
            if event.name in self._streams:
                yield from self._streams[event.name].add(_Chunk.model_validate_json(event.data).chunk)
            elif event.name == "result":
                yield from self._show(Result(_Shown.model_validate_json(event.data).data))
            elif event.name == "exit":
                self.end = CellEnd.model_validate_json(event.data)
            elif event.name == "error":
                raise from_body(ErrorBody.model_validate_json(event.data), 500)
        except ValidationError as error:
            raise Unreadable from error

    def give_to(self, error: TorporError) -> TorporError:
        """Return an error, which carries the output so far if it is of a kind that does."""
        if isinstance(error, ExecTimeout | InterpreterLost):
            error.stdout, error.stderr = self._text("stdout"), self._text("stderr")
        return error

    def execution(self, end: CellEnd) -> Execution:
        """Return all of it."""
        is_cut = self._is_cut or any(stream.is_cut for stream in self._streams.values())
        return Execution(
            results=tuple(self._results),
            stdout=self._text("stdout"),
            stderr=self._text("stderr"),
            exit_code=end.exit,
            duration_ms=end.duration_ms,
            execution_count=end.execution_count,
            error=end.error,
            error_name=end.error_name,
            truncated=end.truncated or is_cut,
        )

    def _show(self, result: Result) -> Iterator[Delivery]:
        self._shown_again += 1
        if self._shown_again <= self._shown:
            return
        self._shown += 1
        size = len(json.dumps(result.data))
        if size <= self._room:
            self._room -= size
            self._results.append(result)
        else:  # no interpreter sends so much; who takes one's place has no bounds but ours
            self._is_cut = True
        if self._on_result is not None:
            yield Delivery(self._on_result, result)

    def _text(self, name: Literal["stdout", "stderr"]) -> str:
        return "".join(self._streams[name].parts)


def new_session(language: str, cwd: str | None, env: Mapping[str, str] | None, user: str | None) -> bytes:
    """Return the body of a new code context. Raises InvalidRequest."""
    order = checked(NewSession, language=language, cwd=cwd, env=dict(env or {}), user=user)
    return order.model_dump_json(exclude_none=True).encode()


def context_id(id: str) -> str:
    """Return `id` if it has the form of a code context's id. Raises InvalidRequest otherwise."""
    if not isinstance(id, str) or not is_context_id(id):
        raise InvalidRequest(f"{id!r} is not the id of a code context", hint="`code_contexts()` finds them")
    return id


def cell(code: str, timeout_seconds: float | None) -> RunCode:
    """Return the order of a cell. Raises InvalidRequest."""
    return checked(RunCode, code=code, timeout_seconds=timeout_seconds)


def _bytes_of(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text)
    except binascii.Error:  # whoever wrote the value's `_repr_png_` has the last word
        return None
