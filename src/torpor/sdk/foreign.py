"""The one place where what HTTP says becomes Torpor's errors, and where requests are checked before they leave."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from torpor.errors import HostUnreachable, InvalidRequest, OutcomeUnknown, TorporError
from torpor.sdk.settings import START_HINT, Server
from torpor.wire.errors import ErrorBody, from_body

M = TypeVar("M", bound=BaseModel)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PREFIX = re.compile(r"[A-Za-z0-9_-]{8,12}")
_LONGEST_WAIT_S = 60.0
_LISTING = {
    "sandbox": "`torpor list`",
    "snapshot": "`torpor snapshots`",
    "template": "`torpor template list`",
    "build": "`torpor template builds`",
    "volume": "`torpor volume list`",
}
# What a pattern means, for people.
_PATTERNS = {"name": "letters, digits, dots, dashes and underscores only, beginning with a letter or a digit"}


@contextmanager
def translated(server: Server) -> Iterator[None]:
    """Raise what httpx2 raises as HostUnreachable (nothing was sent) or OutcomeUnknown (it may have been)."""
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
        raise HostUnreachable(
            f"no Torpor server answers at {server.url}", hint=START_HINT if server.is_loopback else None
        ) from error
    except httpx2.TimeoutException as error:
        raise OutcomeUnknown(
            f"the server at {server.url} fell silent before its answer was complete", hint="look before trying again"
        ) from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise OutcomeUnknown(
            f"the connection to {server.url} broke before the answer was complete", hint="look before trying again"
        ) from error


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> TorporError:
    """Return the error that an answer reports. One that is not in our form (a proxy's) is named by its status."""
    try:
        said = ErrorBody.model_validate_json(body)
    except ValidationError:
        said = ErrorBody(error=f"the server answered with status {status}", code="")
    error = from_body(said, status)
    error.request_id = error.request_id or headers.get("x-request-id")
    try:
        error.retry_after_s = min(float(headers.get("retry-after", "")), _LONGEST_WAIT_S)
    except ValueError:
        error.retry_after_s = None
    return error


def decoded(model: type[M], body: bytes) -> M:
    """Read an answer. Raises OutcomeUnknown if it is not what the API promises."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise OutcomeUnknown(
            f"the server's answer is not a {model.__name__}", hint="are client and server of the same version?"
        ) from error


def checked(model: type[M], **fields: Any) -> M:
    """Build a request. Raises InvalidRequest naming the first field that is wrong."""
    try:
        return model(**fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("str", "list[")))
        said = _PATTERNS.get(where) if first["type"] == "string_pattern_mismatch" else None
        message = first["msg"].removeprefix("Value error, ")
        told = said or message[:1].lower() + message[1:]
        raise InvalidRequest(told if told.startswith(f"{where} ") else f"{where}: {told}") from error


def checked_id(id: str, kind: str = "sandbox") -> str:
    """Return `id` if it can stand in a URL. Raises InvalidRequest otherwise."""
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise InvalidRequest(f"{id!r} is not the id of a {kind}", hint=f"{_LISTING[kind]} shows the ids")
    return id


def checked_prefix(prefix: str) -> str:
    """Return the beginning of a key if it can stand in a URL, and is no whole key, which must not stand in one."""
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise InvalidRequest("a key is named by its first 8 to 12 characters", hint="`torpor token list` shows them")
    return prefix
