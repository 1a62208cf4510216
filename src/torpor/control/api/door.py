"""What stands before every route, as plain ASGI: a request id, who is meant, a bound on the body, the last resort."""

from __future__ import annotations

import asyncio
import re
import secrets
from typing import Protocol

import structlog
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torpor.control.access import AccessConfig, host_named
from torpor.control.api.cors import Headers, allowing_headers, check_origin, is_preflight, preflight_headers
from torpor.control.api.guard import Guard
from torpor.control.api.problems import answer_for
from torpor.control.service.plane import Plane
from torpor.errors import InvalidRequest, OutcomeUnknown, TorporError

_log = structlog.get_logger("torpor.control")

# 16 MiB of stdin as base64, and what is around it.
MAX_BODY_BYTES = 24 * 1024 * 1024
_BEGINNINGS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
# What is for a server in a sandbox is streamed to it.
_TO_SERVER = re.compile(r"/v1/sandboxes/[^/]+/proxy/")
# Bounds what it takes by itself, part by part.
_BUILD = ("POST", "/v1/templates/build")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Elsewhere(Protocol):
    """What serves the hosts that are not the API's own, such as one for each port of a sandbox."""

    def serves(self, host: str) -> bool:
        """Tell whether a host, by its name in lower case and without a port, is one of these."""

    def takes(self, scope: Scope) -> bool:
        """Tell whether a request to the API's own host is for these all the same, and brings what opens it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request to such a host. It comes without a caller: what it needs of one, it finds out itself."""


class Door:
    """Lets requests through to an application: those that name this server, and come from no foreign page.

    Puts `request_id` into the request's state; what `Guard` does comes after it. Requests to the hosts of `elsewhere`
    go there and nowhere else. Bodies are bounded but for files, which are streamed. What the application raises is
    logged and answered without a word of its inside.
    """

    def __init__(
        self, app: ASGIApp, plane: Plane, key: str, access: AccessConfig, elsewhere: Elsewhere | None = None
    ) -> None:
        self._guard = Guard(app, plane, key, access)
        self._access = access
        self._elsewhere = elsewhere

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            raise AssertionError("the server is configured for HTTP and WebSocket only")
        headers = dict(scope["headers"])
        request_id = _request_id(headers.get(b"x-request-id", b""))
        scope.setdefault("state", {})["request_id"] = request_id
        answer = _Answer(send, request_id)
        told = {"request_id": request_id, "method": scope.get("method", "WEBSOCKET"), "path": scope["path"]}
        try:
            await self._serve(scope, headers, receive, answer)
        except TorporError as error:
            await answer.give(error, scope, receive)
        except asyncio.CancelledError:
            # We are the outermost frame of the request's task, so this is the server, which stops and waits no longer.
            _log.info("cut off by the stop", **told)
            unknown = OutcomeUnknown("the server was stopped before the request was done")
            await answer.give(unknown, scope, receive)
        except ClientDisconnect:
            _log.info("client gone", **told)
        except Exception:
            _log.exception("unexpected", **told)
            unknown = OutcomeUnknown("the server failed in a way it does not know; its log has the request id")
            await answer.give(unknown, scope, receive)

    async def _serve(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, answer: _Answer) -> None:
        host = _host(scope)
        if self._elsewhere is not None and self._elsewhere.serves(host_named(host)):
            await self._elsewhere(scope, receive, answer)
            return
        self._access.called(host)
        if self._elsewhere is not None and self._elsewhere.takes(scope):
            await self._elsewhere(scope, receive, answer)
            return
        answer.more += allowing_headers(self._access, headers)
        if is_preflight(scope, headers):
            answer.more = preflight_headers(self._access, headers)
            await Response(status_code=204)(scope, receive, answer)
            return
        check_origin(self._access, scope, headers)
        await self._guard(scope, _bounded(scope, headers, receive), answer)


class _Answer:
    """The way back to the client: names the request, and knows whether the answer has begun."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self._begun = False
        # Headers that every answer to this request gets.
        self.more: Headers = []

    async def __call__(self, message: Message) -> None:
        if message["type"] in _BEGINNINGS:
            self._begun = True
            own = (b"x-request-id", self._request_id.encode())
            message["headers"] = [*message.get("headers", ()), own, *self.more]
        await self._send(message)

    async def give(self, error: TorporError, scope: Scope, receive: Receive) -> None:
        # An answer that has begun cannot become an error any more: it is left unfinished, and the server breaks it off.
        if not self._begun:
            await answer_for(error, self._request_id)(scope, receive, self)


def _host(scope: Scope) -> str:
    named = [value for name, value in scope["headers"] if name == b"host"]
    return named[0].decode("latin-1") if len(named) == 1 else ""


def _request_id(given: bytes) -> str:
    if _REQUEST_ID.fullmatch(given):
        return given.decode()
    return f"req-{secrets.token_hex(8)}"


def _bounded(scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Receive:
    if scope["type"] != "http" or (scope["method"] == "PUT" and scope["path"].endswith("/fs")):
        return receive
    if _TO_SERVER.match(scope["path"]) or (scope["method"], scope["path"]) == _BUILD:
        return receive
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise _too_large()
    taken = 0

    async def counting() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > MAX_BODY_BYTES:
            raise _too_large()
        return message

    return counting


def _too_large() -> InvalidRequest:
    return InvalidRequest(
        f"the body is larger than {MAX_BODY_BYTES} bytes", hint="send large data as a file: PUT .../fs?path="
    )
