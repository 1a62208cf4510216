"""`/v1/sandboxes`: create, list, show, delete, and how long they live."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from torpor import errors
from torpor.control.api.answers import PatientPassage
from torpor.control.api.deps import IdempotencyKey, Targets, ThePlane, TheSandbox, Workspace
from torpor.control.api.problems import refusals
from torpor.control.api.views import lifecycle_view, network_view, view
from torpor.control.service.create import create
from torpor.control.service.cursors import position_of
from torpor.control.service.delete import delete
from torpor.control.service.network import change_network, network_of
from torpor.control.service.sandboxes import change_life, list_page, metadata_filter, show, state_of
from torpor.control.service.wishes import CreateWish
from torpor.control.store.contract import Listing
from torpor.wire.public import Lifecycle, LifecycleChange, SandboxPage, SandboxView
from torpor.wire.reach import NetworkChange, NetworkView

router = APIRouter(prefix="/v1/sandboxes", tags=["sandboxes"])

_MAKING = refusals(errors.NotFound, errors.Conflict, errors.QuotaExceeded, errors.OutOfSpace)
_ONE = refusals(errors.NotFound, errors.Conflict)
_CHANGING = refusals(errors.NotFound, errors.Conflict, errors.SandboxLost)


@router.post(
    "",
    status_code=201,
    response_class=Response,
    responses={**_MAKING, 201: {"model": SandboxView, "description": "The sandbox runs."}},
)
async def create_sandbox(
    plane: ThePlane,
    workspace: Workspace,
    wish: CreateWish,
    targets: Targets,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Bring a template's snapshot to life as a new sandbox, or the snapshot `from_snapshot`.

    After 10 s the answer begins as 201 and is padded with spaces until the JSON is there.
    """

    async def made() -> SandboxView:
        sandbox = await create(plane, workspace, wish, idempotency_key)
        targets.extend(id for id in (sandbox.id, sandbox.from_snapshot) if id is not None)
        return view(sandbox)

    return PatientPassage(plane.clock, made, 201)


@router.get("", responses=refusals())
async def list_sandboxes(
    plane: ThePlane,
    workspace: Workspace,
    request: Request,
    status: Annotated[str | None, Query(description="only sandboxes in this state")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before", max_length=256)] = None,
) -> SandboxPage:
    """List living sandboxes, the newest first. `metadata.<key>=<value>`, once or more, filters by metadata."""
    listing = Listing(
        workspace=workspace,
        limit=limit,
        metadata=metadata_filter(request.query_params),
        state=None if status is None else state_of(status),
        after=None if cursor is None else position_of(cursor),
    )
    found, next_cursor = await list_page(plane, listing)
    return SandboxPage(items=[view(sandbox) for sandbox in found], next_cursor=next_cursor)


@router.get("/{id}", responses=_ONE)
async def show_sandbox(plane: ThePlane, owned: TheSandbox) -> SandboxView:
    """Show one living sandbox."""
    return view(await show(plane, owned))


@router.delete("/{id}", status_code=204, responses=_ONE)
async def delete_sandbox(plane: ThePlane, owned: TheSandbox) -> None:
    """Delete a sandbox and all it has but its checkpoints. Deleting it again is fine."""
    await delete(plane, owned)


@router.get("/{id}/lifecycle", responses=_ONE)
async def show_lifecycle(plane: ThePlane, owned: TheSandbox) -> Lifecycle:
    """Show how long a sandbox lives."""
    return lifecycle_view(await show(plane, owned))


@router.patch("/{id}/lifecycle", responses=_ONE)
async def change_lifecycle(plane: ThePlane, owned: TheSandbox, change: LifecycleChange) -> Lifecycle:
    """Set the end of a sandbox's life: `ttl_seconds` from now, or never with `persistent`; and when it is idle."""
    return lifecycle_view(await change_life(plane, owned, change))


@router.get("/{id}/network", responses=_ONE)
async def show_network(plane: ThePlane, owned: TheSandbox) -> NetworkView:
    """Show what a sandbox may reach, and what it tried to and could not. It is not woken."""
    return network_view(*await network_of(plane, owned))


@router.patch("/{id}/network", responses=_CHANGING)
async def set_network(plane: ThePlane, owned: TheSandbox, change: NetworkChange) -> NetworkView:
    """Set what a sandbox may reach. It is so at once; in a sleeping one, which is not woken, as soon as it wakes."""
    return network_view(*await change_network(plane, owned, change.network))
