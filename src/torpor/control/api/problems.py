"""Errors on their way out: one body, one place."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from torpor import errors
from torpor.wire.errors import NO_CAPACITY_RETRY_AFTER_S, RETRY_AFTER_S, STATUS, ErrorBody, status_of, to_body

# How the validator begins: "Input should be ...", "String should have ...".
_SHOULD = re.compile(r"[A-Z]\w* should ")
_ANYWHERE: tuple[type[errors.TorporError], ...] = (
    errors.InvalidRequest,
    errors.Unauthenticated,
    errors.Forbidden,
    errors.Misdirected,
    errors.RateLimited,
    errors.OutcomeUnknown,
    errors.Unavailable,
)
_UNION_MEMBERS = ("str", "list[str]", "int", "float")

_NO_OBJECT = "the body has to be a JSON object, sent with Content-Type: application/json"


def answer_for(error: errors.TorporError, request_id: str) -> Response:
    """Return the HTTP answer for an error."""
    status = status_of(error)
    headers = {}
    if isinstance(error, errors.RateLimited):
        headers["retry-after"] = str(max(RETRY_AFTER_S, math.ceil(error.retry_after_s or 0)))
    elif status == 503:
        headers["retry-after"] = str(
            NO_CAPACITY_RETRY_AFTER_S if isinstance(error, errors.NoCapacity) else RETRY_AFTER_S
        )
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return _answer(to_body(error, request_id), status, headers)


def install(app: FastAPI) -> None:
    """Make every error the framework or a verb raises answer in the one form."""

    async def refuse(request: Request, error: Exception) -> Response:
        request_id = request.state.request_id
        if isinstance(error, errors.TorporError):
            return answer_for(error, request_id)
        if isinstance(error, RequestValidationError):
            return answer_for(errors.InvalidRequest(sentence(error.errors()[0])), request_id)
        if isinstance(error, HTTPException):
            return _of_framework(request, error, request_id)
        raise error

    app.add_exception_handler(errors.TorporError, refuse)
    app.add_exception_handler(RequestValidationError, refuse)
    app.add_exception_handler(HTTPException, refuse)


def _of_framework(request: Request, error: HTTPException, request_id: str) -> Response:
    if isinstance(error.__cause__, errors.TorporError):  # raised by what reads the body, and wrapped on the way
        return answer_for(error.__cause__, request_id)
    if error.status_code == 404:
        return answer_for(errors.NotFound(f"there is nothing at {request.url.path}"), request_id)
    if error.status_code == 400:
        return answer_for(errors.InvalidRequest("the body cannot be read as JSON"), request_id)
    message = str(error.detail)
    if error.status_code == 405:
        message = f"{request.method} is not possible at {request.url.path}"
    body = to_body(errors.InvalidRequest(message), request_id)
    return _answer(body, error.status_code, error.headers or {})


def _answer(body: ErrorBody, status: int, headers: Mapping[str, str]) -> Response:
    return Response(body.model_dump_json(), status, headers=dict(headers), media_type="application/json")


def sentence(problem: Mapping[str, Any]) -> str:
    """Return what is wrong with a field in one plain sentence that begins with its name."""
    place = [str(part) for part in problem["loc"][1:] if part not in _UNION_MEMBERS]
    if problem["type"] == "json_invalid":
        return f"the body is not valid JSON: {problem['ctx']['error']} at character {problem['loc'][1]}"
    if not place:
        return "the body is missing" if problem["type"] == "missing" else _NO_OBJECT
    field = ".".join(place).removesuffix(".[key]")
    if field == "cmd" and problem["type"] in ("string_type", "list_type"):
        return "cmd has to be a string or a list of strings"
    if problem["type"] == "missing":
        return f"{field} is required"
    message = str(problem["msg"]).removeprefix("Value error, ")
    if (claim := _SHOULD.match(message)) is not None:
        return f"{field} has to {message[claim.end() :]}"
    return message if message.startswith(f"{field} ") else f"{field}: {message}"


def refusals(*classes: type[errors.TorporError]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of the errors a route may answer with, beside those every route may."""
    said: dict[int | str, dict[str, Any]] = {}
    for cls in [*_ANYWHERE, *classes]:
        summary = (cls.__doc__ or cls.__name__).strip().splitlines()[0]
        said.setdefault(STATUS[cls], {"model": ErrorBody, "description": summary})
    return said
