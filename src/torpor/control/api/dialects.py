"""What is said on the WebSockets of terminals and commands, in two dialects.

binary: output as binary frames, and as text frames JSON objects that say the rest: `{"exit": 0}`, `{"error": "..."}`,
`{"stderr": "..."}` of a command without a terminal. Input as binary or text frames; a text frame that is a JSON object
with one of the keys `resize`, `signal` and `eof` is no input, but says that.

json: every frame a JSON object with a `type`; binary frames of a client's are input here, too.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError
from starlette.types import Message
from websockets.frames import CloseCode

from torpor.control.api.problems import sentence
from torpor.errors import InvalidRequest, TorporError
from torpor.wire import host
from torpor.wire.errors import to_body
from torpor.wire.frames import Kind
from torpor.wire.processes import SendSignal, TerminalSize

# A frame of a client's may be so long.
MAX_FRAME_BYTES = 1024 * 1024

Name = Literal["binary", "json"]
Encoding = Literal["text", "base64"]
NAMES: tuple[Name, ...] = ("binary", "json")
ENCODINGS: tuple[Encoding, ...] = ("text", "base64")


class Broken(Exception):
    """A client said what makes no sense here. `code` closes the WebSocket, and the text says why."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Input(NamedTuple):
    """Bytes for the command's input."""

    data: bytes


class Eof(NamedTuple):
    """No more input comes; on a terminal its character for that."""


class Ping(NamedTuple):
    """A client asks whether anybody is there."""


Said = Input | Eof | Ping | TerminalSize | SendSignal


@dataclass(slots=True)
class _Text:
    """One stream's bytes as text, no character cut in two. `at` is the offset up to which it has been told."""

    at: int
    encoding: Encoding
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def feed(self, data: bytes, *, final: bool = False) -> str:
        self.at += len(data)
        if self.encoding == "base64":
            return base64.b64encode(data).decode()
        return self._decoder.decode(data, final)

    def told(self) -> int:
        """Return the offset of the first byte that is still held back."""
        return self.at if self.encoding == "base64" else self.at - len(self._decoder.getstate()[0])


class Dialect:
    """How one connection speaks. `at`: the offsets of stdout and stderr at which it begins to listen.

    Without a `name` it is binary, and becomes json if the first frame of the client's is an object with a known `type`;
    `is_plain` never does, and is told of nothing but output, its end and errors.
    """

    def __init__(self, name: Name | None, encoding: Encoding, at: tuple[int, int], *, is_plain: bool = False) -> None:
        self._is_json = name == "json"
        self._is_open = name is None and not is_plain
        self._is_plain = is_plain
        self._texts = {Kind.STDOUT: _Text(at[0], encoding), Kind.STDERR: _Text(at[1], encoding)}

    # -- what is sent

    def started(self, job: host.Job, at: int) -> Iterator[Message]:
        """Yield how a command is told by whose id it can be found again."""
        told = {"process_id": job.id, "from": at}
        if self._is_json:
            yield _text({"type": "started", **told})
        elif not self._is_plain:
            yield _text({"started": told})

    def output(self, kind: Kind, data: bytes) -> Iterator[Message]:
        """Yield how output is told."""
        if kind is Kind.STDOUT and not self._is_json:
            self._texts[kind].at += len(data)
            yield {"type": "websocket.send", "bytes": data}
            return
        yield from self._chunk(kind, self._texts[kind].feed(data))

    def _chunk(self, kind: Kind, chunk: str) -> Iterator[Message]:
        name = kind.name.lower()
        if chunk and self._is_json:
            yield _text({"type": name, "data": chunk, "to": self._texts[kind].told()})
        elif chunk:
            yield _text({name: chunk})

    def _rest(self) -> Iterator[Message]:
        for kind, text in self._texts.items():
            if text.encoding == "text" and (rest := text.feed(b"", final=True)):
                yield from self._chunk(kind, rest)

    def exit(self, outcome: host.ExecOutcome) -> Iterator[Message]:
        """Yield how a command's end is told."""
        yield from self._rest()
        told = {"signal": outcome.signal, "oom_killed": outcome.oom_killed, "duration_ms": outcome.duration_ms}
        if self._is_json:
            yield _text({"type": "exit", "exit_code": outcome.exit_code, **told})
        else:
            yield _text({"exit": outcome.exit_code} | ({} if self._is_plain else told))

    def error(self, error: TorporError, request_id: str) -> Iterator[Message]:
        """Yield how an error is told."""
        yield from self._rest()
        body = to_body(error, request_id).model_dump()
        yield _text({"type": "error", **body} if self._is_json else body)

    def pong(self) -> Iterator[Message]:
        """Yield the answer to a ping."""
        yield _text({"type": "pong"})

    # -- what is heard

    def hear(self, message: Message) -> Said:
        """Return what a client's frame says. Raises Broken."""
        text: str | None = message.get("text")
        data: bytes = message["bytes"] if text is None else text.encode()
        if len(data) > MAX_FRAME_BYTES:
            raise Broken(CloseCode.MESSAGE_TOO_BIG, f"a frame has at most {MAX_FRAME_BYTES} bytes")
        was_open, self._is_open = self._is_open, False
        if text is None:
            return Input(data)
        if was_open and _type_of(_object_in(text)) is not None:
            self._is_json = True
        return _said_in_json(text) if self._is_json else _said_in_binary(text, data)


def _said_in_binary(text: str, data: bytes) -> Said:
    found = _object_in(text) if text.startswith("{") else None
    if not isinstance(found, dict) or not found.keys() & {"resize", "signal", "eof"}:
        return Input(data)
    if "resize" in found:
        return _checked_size(found["resize"])
    return _checked_signal(found) if "signal" in found else Eof()


def _said_in_json(text: str) -> Said:
    found = _object_in(text)
    if not isinstance(found, dict):
        raise Broken(CloseCode.UNSUPPORTED_DATA, "every text frame has to be a JSON object")
    kind = _type_of(found)
    if kind is None:
        raise Broken(CloseCode.POLICY_VIOLATION, f"type has to be one of {', '.join(sorted(_TYPES))}")
    if kind == "stdin":
        return Input(_input_in(found))
    if kind == "resize":
        return _checked_size(found)
    if kind == "signal":
        return _checked_signal(found)
    return Eof() if kind == "eof" else Ping()


_TYPES = frozenset({"stdin", "resize", "signal", "eof", "ping"})


def _type_of(found: object) -> str | None:
    """Return the known type of what a frame says, None if it has none."""
    kind = found.get("type") if isinstance(found, dict) else None
    return kind if isinstance(kind, str) and kind in _TYPES else None


def _input_in(found: dict[str, Any]) -> bytes:
    data, encoding = found.get("data"), found.get("encoding", "text")
    if not isinstance(data, str) or encoding not in ENCODINGS:
        raise Broken(CloseCode.POLICY_VIOLATION, 'stdin needs data, a string, and encoding is "text" or "base64"')
    try:
        return data.encode() if encoding == "text" else base64.b64decode(data, validate=True)
    except UnicodeEncodeError:
        raise Broken(CloseCode.POLICY_VIOLATION, "half a surrogate pair is no character") from None
    except (binascii.Error, ValueError):
        raise Broken(CloseCode.POLICY_VIOLATION, "the data of stdin is not base64") from None


def _checked_size(found: object) -> TerminalSize:
    try:
        size = TerminalSize.model_validate(found)
    except ValidationError:
        size = None
    if size is None or not isinstance(found, dict) or not {"rows", "cols"} <= found.keys():
        most = host.MAX_TERMINAL_CELLS
        raise Broken(CloseCode.POLICY_VIOLATION, f"resize needs rows and cols, whole numbers from 1 to {most}")
    return size


def _checked_signal(found: dict[str, Any]) -> SendSignal:
    try:
        return SendSignal.model_validate({"signal": found.get("signal")})
    except ValidationError:
        raise Broken(CloseCode.POLICY_VIOLATION, "signal has to be a name such as SIGTERM") from None


def _object_in(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _text(value: dict[str, Any]) -> Message:
    return {"type": "websocket.send", "text": json.dumps(value)}


def plain(error: ValidationError, what: str) -> InvalidRequest:
    """Return what is wrong with an object, in one sentence; `what` names it where it is wrong as a whole."""
    found = error.errors()[0]
    if not found["loc"]:
        return InvalidRequest(f"{what} has to be a JSON object")
    return InvalidRequest(sentence({**found, "loc": ("body", *found["loc"])}))
