"""`/v1/sandboxes/{id}/snapshots` and `/v1/snapshots`: take, list, show, check and delete checkpoints."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query
from starlette.responses import Response

from torpor import errors
from torpor.control.api.answers import Patient, PatientPassage
from torpor.control.api.deps import IdempotencyKey, Targets, ThePlane, TheSandbox, Workspace
from torpor.control.api.problems import refusals
from torpor.control.api.views import snapshot_view
from torpor.control.service.cursors import position_of
from torpor.control.service.snapshot import snapshot
from torpor.control.service.snapshots import delete_snapshot, list_snapshots, show_snapshot, verify_snapshot
from torpor.control.store.contract import SnapshotListing
from torpor.model.ids import SandboxId
from torpor.wire.public import SnapshotPage, SnapshotView, TakeSnapshot, Verified

router = APIRouter(prefix="/v1", tags=["snapshots"])

_TAKING = refusals(errors.NotFound, errors.Conflict, errors.SandboxLost, errors.OutOfSpace, errors.FreezeFailed)
_ONE = refusals(errors.NotFound, errors.Conflict, errors.SnapshotCorrupt)
Id = Annotated[str, Path(description="a snapshot's id", max_length=64)]


@router.post(
    "/sandboxes/{id}/snapshots",
    status_code=201,
    response_class=Response,
    responses={**_TAKING, 201: {"model": SnapshotView, "description": "The snapshot is on the disk."}},
)
async def take_snapshot(
    plane: ThePlane,
    owned: TheSandbox,
    targets: Targets,
    wish: Annotated[TakeSnapshot | None, Body()] = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Take a durable checkpoint of a sandbox, which goes on.

    After 10 s the answer begins as 201 and is padded with spaces until the JSON is there.
    """

    async def taken() -> SnapshotView:
        name = None if wish is None else wish.name
        record = await snapshot(plane, owned, name, idempotency_key)
        targets.append(record.id)
        return snapshot_view(record)

    return PatientPassage(plane.clock, taken, 201)


@router.get("/snapshots", responses=refusals())
async def list_all_snapshots(
    plane: ThePlane,
    workspace: Workspace,
    sandbox_id: Annotated[str | None, Query(description="only snapshots of this sandbox", max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before", max_length=256)] = None,
) -> SnapshotPage:
    """List snapshots, the newest first, also those of sandboxes that have been deleted."""
    listing = SnapshotListing(
        workspace=workspace,
        sandbox=None if sandbox_id is None else SandboxId(sandbox_id),
        limit=limit,
        after=None if cursor is None else position_of(cursor),
    )
    found, next_cursor = await list_snapshots(plane, listing)
    return SnapshotPage(items=[snapshot_view(record) for record in found], next_cursor=next_cursor)


@router.get("/snapshots/{id}", responses=_ONE)
async def show_one_snapshot(plane: ThePlane, workspace: Workspace, id: Id) -> SnapshotView:
    """Show one snapshot."""
    return snapshot_view(await show_snapshot(plane, workspace, id))


@router.delete("/snapshots/{id}", status_code=204, responses=_ONE)
async def delete_one_snapshot(plane: ThePlane, workspace: Workspace, id: Id) -> None:
    """Delete a snapshot. Sandboxes made from it live on."""
    await delete_snapshot(plane, workspace, id)


@router.post(
    "/snapshots/{id}/verify",
    response_class=Response,
    responses={**_ONE, 200: {"model": Verified, "description": "Every byte is as it was written."}},
)
async def verify_one_snapshot(plane: ThePlane, workspace: Workspace, id: Id) -> Response:
    """Compare every byte of a snapshot with its checksum.

    After 10 s the answer begins as 200 and is padded with spaces until the JSON is there; a difference that is found
    after that breaks the answer off.
    """

    async def verified() -> Verified:
        return await verify_snapshot(plane, workspace, id)

    return Patient(plane.clock, verified)
