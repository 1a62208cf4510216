"""What routes take from a request, each with its check and its place in the OpenAPI description."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request
from fastapi.security import HTTPBearer
from pydantic import AfterValidator

from torpor.control.service.files import MAX_PATH, absolute, octal
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned
from torpor.errors import Forbidden, InvalidRequest
from torpor.model.access import Caller
from torpor.model.ids import SandboxId, WorkspaceId

# All of these are coroutines, though they wait for nothing: a plain function would be sent through a thread.

# For the description only: `guard.py` has looked at the key before a route is chosen.
bearer = HTTPBearer(auto_error=False, description="a key; the server's own is in the file `key` in its home directory")


async def plane_of_app(request: Request) -> Plane:
    """Return the collaborators of the application that serves this request."""
    plane: Plane = request.app.state.plane
    return plane


async def workspace_of_caller(request: Request) -> WorkspaceId:
    """Return the workspace whose key the request came with."""
    workspace: WorkspaceId = request.state.workspace
    return workspace


async def caller_of_request(request: Request) -> Caller:
    """Return whose key the request came with."""
    caller: Caller = request.state.caller
    return caller


async def admin_of_request(request: Request) -> Caller:
    """Return whose key the request came with. Raises Forbidden unless it is an admin's."""
    caller = await caller_of_request(request)
    if not caller.is_admin:
        raise Forbidden("only an admin's key may do this", hint="the server's own key is one")
    return caller


async def targets_of_request(request: Request) -> list[str]:
    """Return the list that ids go into which the request is about, or makes, for the audit log; see `audited.py`."""
    targets: list[str] = request.state.targets
    return targets


async def owned_by_caller(
    request: Request, id: Annotated[str, Path(description="a sandbox's id", max_length=64)]
) -> Owned:
    """Return the sandbox in the path as the caller's; whether there is one is for the verb to find out."""
    return Owned(request.state.workspace, SandboxId(id))


def _checked_path(path: str) -> str:
    try:
        return absolute(path)
    except InvalidRequest as error:
        raise ValueError(error.message) from error


def _checked_mode(mode: str | None) -> str | None:
    try:
        return octal(mode)
    except InvalidRequest as error:
        raise ValueError(error.message) from error


ThePlane = Annotated[Plane, Depends(plane_of_app)]
Workspace = Annotated[WorkspaceId, Depends(workspace_of_caller)]
TheCaller = Annotated[Caller, Depends(caller_of_request)]
AnAdmin = Annotated[Caller, Depends(admin_of_request)]
Targets = Annotated[list[str], Depends(targets_of_request)]
TheSandbox = Annotated[Owned, Depends(owned_by_caller)]

GuestPath = Annotated[
    str,
    Query(description="an absolute path in the guest", json_schema_extra={"pattern": "^/", "maxLength": MAX_PATH}),
    AfterValidator(_checked_path),
]
Mode = Annotated[
    str | None,
    Query(description="permission bits in octal, such as 640", json_schema_extra={"pattern": "^0?[0-7]{1,4}$"}),
    AfterValidator(_checked_mode),
]
GuestUser = Annotated[str | None, Query(description="a user in the guest", min_length=1, max_length=64)]
IdempotencyKey = Annotated[
    str | None, Header(description="a request that is sent again with the same key and body is served once")
]
