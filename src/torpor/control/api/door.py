"""What stands before every route, as plain ASGI: a request id, the key, a bound on the body, and the last resort."""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torpor.control.api.problems import answer_for
from torpor.control.service.plane import DEFAULT_WORKSPACE
from torpor.errors import InvalidRequest, OutcomeUnknown, TorporError, Unauthenticated

_log = structlog.get_logger("torpor.control")

# 16 MiB of stdin as base64, and what is around it.
MAX_BODY_BYTES = 24 * 1024 * 1024
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Door:
    """Lets requests through to an application.

    Puts `request_id` into the request's state, and `workspace` for what is below /v1; answers 401 there without the
    key. Bodies are bounded but for files, which are streamed. What the application raises is logged and answered
    without a word of its inside.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = _request_id(headers.get(b"x-request-id", b""))
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        answer = _Answer(send, request_id)
        try:
            if scope["path"].startswith("/v1/"):
                self._check_key(headers.get(b"authorization", b""))
                state["workspace"] = DEFAULT_WORKSPACE
            await self._app(scope, _bounded(scope, headers, receive), answer)
        except TorporError as error:
            await answer.give(error, scope, receive)
        except asyncio.CancelledError:
            # We are the outermost frame of the request's task, so this is the server, which stops and waits no longer.
            _log.info("cut off by the stop", request_id=request_id, method=scope["method"], path=scope["path"])
            unknown = OutcomeUnknown("the server was stopped before the request was done")
            await answer.give(unknown, scope, receive)
        except ClientDisconnect:
            _log.info("client gone", request_id=request_id, method=scope["method"], path=scope["path"])
        except Exception:
            _log.exception("unexpected", request_id=request_id, method=scope["method"], path=scope["path"])
            unknown = OutcomeUnknown("the server failed in a way it does not know; its log has the request id")
            await answer.give(unknown, scope, receive)

    def _check_key(self, authorization: bytes) -> None:
        scheme, _, key = authorization.partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(key.strip(), self._key):
            what = "the API key is missing" if not authorization else "the API key is not this server's"
            raise Unauthenticated(
                f"{what}; it is in the file `key` in the server's home directory",
                hint="send it as `Authorization: Bearer KEY`, or set TORPOR_API_KEY",
            )


class _Answer:
    """The way back to the client: names the request, and knows whether the answer has begun."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self._begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun = True
            message["headers"] = [*message["headers"], (b"x-request-id", self._request_id.encode())]
        await self._send(message)

    async def give(self, error: TorporError, scope: Scope, receive: Receive) -> None:
        # An answer that has begun cannot become an error any more: it is left unfinished, and the server breaks it off.
        if not self._begun:
            await answer_for(error, self._request_id)(scope, receive, self)


def _request_id(given: bytes) -> str:
    if _REQUEST_ID.fullmatch(given):
        return given.decode()
    return f"req-{secrets.token_hex(8)}"


def _bounded(scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Receive:
    if scope["method"] == "PUT" and scope["path"].endswith("/fs"):
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
