"""How an error crosses a process boundary: one table from class to HTTP status, one body, and the way back.

Body: `{"error": "<one plain sentence>", "code", "retryable", "hint", "request_id", "details"}`; `error` stays a string
because clients print it as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, Field

from torpor import errors

STATUS: dict[type[errors.TorporError], int] = {
    errors.TorporError: 500,
    errors.Refused: 400,
    errors.InvalidRequest: 400,
    errors.TooLarge: 413,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.Misdirected: 421,
    errors.QuotaExceeded: 429,
    errors.OutOfSpace: 507,
    errors.Unsupported: 400,
    errors.Unavailable: 503,
    errors.NoCapacity: 503,
    errors.HostUnreachable: 503,
    errors.Busy: 503,
    errors.RateLimited: 429,
    errors.PortClosed: 502,
    errors.Failed: 500,
    errors.BootFailed: 500,
    errors.RestoreFailed: 500,
    errors.FreezeFailed: 500,
    errors.SandboxLost: 410,
    errors.SnapshotCorrupt: 500,
    errors.ExecTimeout: 504,
    errors.InterpreterLost: 410,
    errors.CommandFailed: 422,
    errors.ExploreFailed: 422,
    errors.BuildFailed: 500,
    errors.BadAnswer: 502,
    errors.OutcomeUnknown: 500,
}

# Seconds after which a client may ask again, sent as Retry-After with every 503.
RETRY_AFTER_S = 1
# The same for a host without room: somebody has to end something first.
NO_CAPACITY_RETRY_AFTER_S = 5


class ErrorBody(BaseModel):
    """The JSON body of every answer that is not a success."""

    error: str
    code: str
    retryable: bool = False
    hint: str | None = None
    request_id: str | None = None
    details: dict[str, Any] = Field(default_factory=dict)


def every_error() -> Iterator[type[errors.TorporError]]:
    """Yield each class of the tree, root first."""
    waiting = [errors.TorporError]
    while waiting:
        cls = waiting.pop()
        yield cls
        waiting.extend(cls.__subclasses__())


def status_of(error: errors.TorporError) -> int:
    """Return the HTTP status of an error's class."""
    return STATUS[type(error)]


def to_body(error: errors.TorporError, request_id: str | None = None) -> ErrorBody:
    """Return what is sent for an error; `request_id` is used where the error names none."""
    return ErrorBody(
        # An error may repeat what it was given, and JSON can give half a surrogate pair, which cannot be sent.
        error=error.message.encode(errors="replace").decode(),
        code=error.code,
        retryable=error.retryable,
        hint=error.hint and error.hint.encode(errors="replace").decode(),
        request_id=error.request_id or request_id,
        details=error.details(),
    )


def from_body(body: ErrorBody, status: int) -> errors.TorporError:
    """Rebuild the error that was sent. An unknown code (a newer server) becomes the nearest branch by its status."""
    by_code = {cls.code: cls for cls in every_error()}
    cls = by_code.get(body.code) or _branch_of(status)
    known = cls("").details().keys()
    details = {name: value for name, value in body.details.items() if name in known}
    try:
        return cls(body.error, hint=body.hint, request_id=body.request_id, **details)
    except TypeError:  # details of another shape (a newer server): the message is worth more than they are
        return cls(body.error, hint=body.hint, request_id=body.request_id)


def _branch_of(status: int) -> type[errors.TorporError]:
    if status == 503:
        return errors.Unavailable
    if 400 <= status < 500:
        return errors.Refused
    return errors.OutcomeUnknown
