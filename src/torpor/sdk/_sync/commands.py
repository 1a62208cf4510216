"""How a command in the guest is started and listened to."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, ParamSpec

import httpx2

from torpor.errors import InvalidRequest, OutcomeUnknown
from torpor.sdk.http import STREAM_SILENCE_S, Call
from torpor.sdk.output import Transcript, Watchers
from torpor.sdk.results import ExecResult
from torpor.sdk.sse import EventReader
from torpor.sdk.waiting import sync_deliver
from torpor.wire.public import MAX_STDIN_BYTES, ExecCommand

if TYPE_CHECKING:
    from torpor.sdk._sync.client import Client

P = ParamSpec("P")


class Commands(Generic[P]):
    """The commands of one sandbox: `sbx.commands.run` is `sbx.exec` under another name."""

    def __init__(self, run: Callable[P, ExecResult]) -> None:
        self.run = run


def follow(client: Client, path: str, order: ExecCommand, watchers: Watchers) -> ExecResult:
    """Run a command, hand its output on as it arrives, and return how it ended. Raises as `exec` does."""
    content = order.model_dump_json(exclude_none=True).encode()
    call = Call("POST", path, content=content, silence_s=STREAM_SILENCE_S)
    transcript = Transcript(watchers)
    try:
        return client.perform(call, lambda response: _listen(client, response, transcript))
    except OutcomeUnknown as error:
        raise OutcomeUnknown(
            f"{error.message}; the command may still be running",
            hint="look at what it did before running it again",
            request_id=error.request_id,
        ) from error


def _listen(client: Client, response: httpx2.Response, transcript: Transcript) -> ExecResult:
    events = EventReader()
    try:
        for chunk in client.chunks(response):
            for event in events.feed(chunk):
                for callback, piece in transcript.feed(event):
                    sync_deliver(callback, piece)
    except OutcomeUnknown:
        # After the exit event only the end of the stream was missing, and the outcome is known.
        if transcript.exit is None:
            raise
    return transcript.result()


def encoded_stdin(stdin: str | bytes | None) -> str | None:
    """Return stdin as the wire wants it. Raises InvalidRequest for what is too long or neither text nor bytes."""
    if stdin is None:
        return None
    if not isinstance(stdin, str | bytes | bytearray | memoryview):
        raise InvalidRequest(f"stdin has to be text or bytes, not {type(stdin).__name__}")
    try:
        data = stdin.encode() if isinstance(stdin, str) else bytes(stdin)
    except UnicodeEncodeError as error:
        raise InvalidRequest("stdin: half a surrogate pair is no character") from error
    if len(data) > MAX_STDIN_BYTES:
        raise InvalidRequest(
            f"stdin is at most {MAX_STDIN_BYTES >> 20} MiB, and this is {len(data)} bytes",
            hint="upload a file and read it in the command",
        )
    return base64.b64encode(data).decode()
