"""`/v1/sandboxes`: create, list, show, delete, and how long they live."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request

from torpor import errors
from torpor.control.api.deps import ThePlane, TheSandbox, Workspace
from torpor.control.api.problems import refusals
from torpor.control.service.create import create
from torpor.control.service.delete import delete
from torpor.control.service.sandboxes import list_page, metadata_filter, position_of, set_life, show, state_of
from torpor.control.service.wishes import CreateWish
from torpor.control.store.contract import Listing
from torpor.errors import Unsupported
from torpor.model.sandbox import Sandbox
from torpor.wire.public import Lifecycle, LifecycleChange, SandboxPage, SandboxView

router = APIRouter(prefix="/v1/sandboxes", tags=["sandboxes"])

_MAKING = refusals(errors.Conflict, errors.QuotaExceeded, errors.OutOfSpace)
_ONE = refusals(errors.NotFound, errors.Conflict)


@router.post("", status_code=201, responses=_MAKING)
async def create_sandbox(
    plane: ThePlane,
    workspace: Workspace,
    wish: CreateWish,
    idempotency_key: Annotated[str | None, Header(description="the same key and body give the same sandbox")] = None,
) -> SandboxView:
    """Bring a template's snapshot to life as a new sandbox."""
    return view(await create(plane, workspace, wish, idempotency_key))


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
    """Delete a sandbox and all it has. Deleting it again is fine."""
    await delete(plane, owned)


@router.get("/{id}/lifecycle", responses=_ONE)
async def show_lifecycle(plane: ThePlane, owned: TheSandbox) -> Lifecycle:
    """Show how long a sandbox lives."""
    return lifecycle(await show(plane, owned))


@router.patch("/{id}/lifecycle", responses=_ONE)
async def change_lifecycle(plane: ThePlane, owned: TheSandbox, change: LifecycleChange) -> Lifecycle:
    """Set the end of a sandbox's life: `ttl_seconds` from now, or never with `persistent`."""
    if change.idle_seconds is not None:
        raise Unsupported("idle_seconds was given, and this server cannot do it yet", hint="leave idle_seconds out")
    return lifecycle(await set_life(plane, owned, change.ttl_seconds, change.persistent))


def lifecycle(sandbox: Sandbox) -> Lifecycle:
    """Return how long a sandbox lives, as clients see it."""
    return Lifecycle(
        ttl_seconds=sandbox.ttl_seconds, persistent=sandbox.expires_at is None, expires_at=sandbox.expires_at
    )


def view(sandbox: Sandbox) -> SandboxView:
    """Return a sandbox as clients see it."""
    return SandboxView(
        id=sandbox.id,
        name=sandbox.name,
        template=sandbox.template,
        status=sandbox.state.value,
        cpu=sandbox.cpu,
        memory_mb=sandbox.memory_mb,
        disk_gb=sandbox.disk_gb,
        created_at=sandbox.created_at,
        expires_at=sandbox.expires_at,
        ttl_seconds=sandbox.ttl_seconds,
        persistent=sandbox.expires_at is None,
        metadata=dict(sandbox.metadata),
        boot_ms=sandbox.boot_ms,
        reason=sandbox.reason,
    )
