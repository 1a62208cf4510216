"""The other end of the SDK's connection, as a script: each request is answered by the next line of it."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qsl, urlsplit

import httpx2

from torpor import AsyncClient, Client, Retry
from torpor.errors import TorporError
from torpor.wire.errors import status_of, to_body

# Tries as often as the default policy, without the waiting.
HASTY = Retry(attempts=4, first_delay_s=0.0, longest_delay_s=0.0)
# Does not go on with a stream whose line broke.
RESIGNED = Retry(attempts=4, first_delay_s=0.0, longest_delay_s=0.0, reattach_s=0.0)

VIEW = {
    "id": "sbx-0123456789bcdfgh",
    "template": "base",
    "status": "running",
    "cpu": 1,
    "memory_mb": 512,
    "disk_gb": 8,
    "created_at": "2030-01-01T00:00:00Z",
}

SNAPSHOT = {
    "id": "snp-0123456789bcdfgh",
    "sandbox_id": VIEW["id"],
    "kind": "checkpoint",
    "template": "base",
    "cpu": 1,
    "memory_mb": 512,
    "disk_gb": 8,
    "created_at": "2030-01-01T00:00:10Z",
    "size_bytes": 16 * 1024 * 1024,
    "pause_ms": 42.5,
    "took_ms": 130.0,
}


PROCESS = {
    "id": "job-0123456789bcdfgh",
    "sandbox_id": VIEW["id"],
    "command": "make all",
    "kind": "process",
    "state": "running",
    "started_at": "2030-01-01T00:00:20Z",
}


@dataclass(frozen=True)
class Reply:
    """One answer: its body arrives in these pieces, and breaks after them where `breaks` says so."""

    status: int = 200
    pieces: tuple[bytes, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    breaks: BaseException | None = None

    def response(self) -> httpx2.Response:
        """Return it in httpx2's form."""
        return httpx2.Response(self.status, headers=self.headers, stream=_Cut(*self.pieces, breaks=self.breaks))


@dataclass(frozen=True)
class Received:
    """One request as the server read it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class Script(httpx2.BaseTransport):
    """Answers in order, and keeps what was asked. A request beyond the script fails the test."""

    answers: list[Reply | BaseException]
    received: list[Received] = field(default_factory=list)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer with the next line."""
        return self._answer(request, request.read())

    def client(self, retry: Retry = HASTY) -> Client:
        """Return a client of this server."""
        return Client("http://127.0.0.1:1", "secret-key", retry=retry, transport=self)

    def async_client(self, retry: Retry = HASTY) -> AsyncClient:
        """Return an asynchronous client of it."""
        return AsyncClient("http://127.0.0.1:1", "secret-key", retry=retry, transport=_AsyncScript(self))

    @contextmanager
    def listening(self) -> Iterator[str]:
        """Give the URL of this server, for who can be told nothing else."""
        with HTTPServer(("127.0.0.1", 0), _door_to(self)) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()

    def _answer(self, request: httpx2.Request, body: bytes) -> httpx2.Response:
        url = request.url
        self.received.append(Received(request.method, url.path, dict(url.params), dict(request.headers), body))
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer.response()


@dataclass
class _AsyncScript(httpx2.AsyncBaseTransport):
    script: Script

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return self.script._answer(request, await request.aread())


def _door_to(script: Script) -> type[BaseHTTPRequestHandler]:
    class Door(BaseHTTPRequestHandler):
        def answer(self) -> None:
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            script.received.append(
                Received(self.command, url.path, dict(parse_qsl(url.query)), dict(self.headers), body)
            )
            reply = script.answers.pop(0)
            assert isinstance(reply, Reply), "a server that listens cannot break a connection"
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            whole = b"".join(reply.pieces)
            if reply.status != 204:
                self.send_header("content-length", str(len(whole)))
            self.end_headers()
            self.wfile.write(whole)

        do_GET = do_POST = do_DELETE = do_PATCH = answer

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    return Door


class _Cut(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    def __init__(self, *pieces: bytes, breaks: BaseException | None = None) -> None:
        self._pieces = pieces
        self._breaks = breaks

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces
        if self._breaks is not None:
            raise self._breaks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


def answer(value: object, status: int = 200) -> Reply:
    """A JSON answer."""
    return Reply(status, (json.dumps(value).encode(),))


def streamed(*pieces: bytes, breaks: BaseException | None = None, **headers: str) -> Reply:
    """An answer whose body arrives in these pieces; `x_process_id="..."` is a header of it."""
    return Reply(pieces=pieces, breaks=breaks, headers={name.replace("_", "-"): it for name, it in headers.items()})


def refusal(error: TorporError, **headers: str) -> Reply:
    """The answer to a request that was refused or failed."""
    return Reply(status_of(error), (to_body(error).model_dump_json().encode(),), headers)


def event(name: str, **fields: object) -> bytes:
    """One event of a command's stream."""
    return f"event: {name}\ndata: {json.dumps(fields)}\n\n".encode()


def started() -> bytes:
    """The event of a command that the guest has."""
    return event("started", process_id=PROCESS["id"])


def wrote(stream: str, data: bytes) -> bytes:
    """The event of output."""
    return event(stream, chunk=base64.b64encode(data).decode())


def ended(code: int = 0, **more: object) -> bytes:
    """The event of a command's end."""
    return event("exit", exit_code=code, duration_ms=7, **more)
