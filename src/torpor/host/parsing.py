"""What the host agent's requests say, checked, and its answers in JSON."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from torpor.errors import InvalidRequest, NotFound
from torpor.model.ids import SandboxId, is_sandbox_id

M = TypeVar("M", bound=BaseModel)
# Requests carry at most a command's stdin in base64, and some names.
_MAX_BODY_BYTES = 32 * 1024 * 1024


def json_answer(model: BaseModel, status: int = 200) -> Response:
    """Return a model as a JSON answer."""
    return Response(model.model_dump_json(), status_code=status, media_type="application/json")


async def body_of(request: Request, model: type[M]) -> M:
    """Return a request's body. Raises InvalidRequest, by the field's name, for what it may not be."""
    held = bytearray()
    async for chunk in request.stream():
        held += chunk
        if len(held) > _MAX_BODY_BYTES:
            raise InvalidRequest(f"the request is larger than {_MAX_BODY_BYTES} bytes")
    try:
        return model.model_validate_json(bytes(held) or b"{}")  # an order without words says nothing
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the request"
        raise InvalidRequest(f"{field}: {first['msg']}") from error


def sandbox_of(request: Request) -> SandboxId:
    """Return the sandbox that a request's path names. Raises NotFound."""
    return sandbox_id(request.path_params["id"])


def sandbox_id(text: str) -> SandboxId:
    """Return a text as a sandbox's id. Raises NotFound if it has not its form: it names a folder on this host."""
    if not is_sandbox_id(text):
        raise NotFound(f"there is no sandbox {text!r}")
    return SandboxId(text)


def flag(request: Request, name: str) -> bool:
    """Tell whether a request's query says that something is so."""
    return request.query_params.get(name, "false") in {"true", "1"}
