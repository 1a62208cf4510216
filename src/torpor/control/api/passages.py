"""`/v1/sandboxes/{id}`: pause and resume, hibernate and wake, roll back and fork."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel
from starlette.responses import Response

from torpor import errors
from torpor.control.api.answers import PatientPassage
from torpor.control.api.deps import IdempotencyKey, Targets, ThePlane, TheSandbox
from torpor.control.api.problems import refusals
from torpor.control.api.views import forked_view, view
from torpor.control.service.fork import fork
from torpor.control.service.hibernate import hibernate_asked
from torpor.control.service.pause import pause
from torpor.control.service.resume import resume
from torpor.control.service.rollback import rollback
from torpor.control.service.wake import wake
from torpor.wire.public import Forked, ForkSandbox, Hibernate, RollBack, SandboxView, Status, WakeUp

router = APIRouter(prefix="/v1/sandboxes/{id}", tags=["sandboxes"])

_REFUSALS = refusals(
    errors.NotFound, errors.Conflict, errors.QuotaExceeded, errors.SandboxLost, errors.OutOfSpace, errors.FreezeFailed
)


def _answering(status: int, model: type[BaseModel], description: str) -> dict[int | str, dict[str, Any]]:
    return {**_REFUSALS, status: {"model": model, "description": description}}


@router.post("/pause", status_code=204, responses=_REFUSALS)
async def pause_sandbox(plane: ThePlane, owned: TheSandbox) -> None:
    """Let a sandbox stand still, its memory kept. Fine if it does."""
    await pause(plane, owned)


@router.post("/resume", status_code=204, responses=_REFUSALS)
async def resume_sandbox(plane: ThePlane, owned: TheSandbox) -> None:
    """Let a paused sandbox go on. Fine if it runs."""
    await resume(plane, owned)


@router.post("/hibernate", response_class=Response, responses=_answering(200, Status, "The sandbox sleeps."))
async def hibernate_sandbox(
    plane: ThePlane, owned: TheSandbox, order: Annotated[Hibernate | None, Body()] = None
) -> Response:
    """Freeze a sandbox to disk and end its machine. Fine if it sleeps.

    With `if_unused` it is refused with a Conflict while any other call is using the sandbox.
    After 10 s the answer begins as 200 and is padded with spaces until the JSON is there.
    """

    async def asleep() -> Status:
        done = await hibernate_asked(plane, owned, if_unused=order is not None and order.if_unused)
        return Status(status=done.sandbox.state.value, snapshot_id=done.snapshot)

    return PatientPassage(plane.clock, asleep)


@router.post("/wake", response_class=Response, responses=_answering(200, Status, "The sandbox runs."))
async def wake_sandbox(plane: ThePlane, owned: TheSandbox, order: Annotated[WakeUp | None, Body()] = None) -> Response:
    """Let a hibernated sandbox go on where it stopped. Fine if it runs. Long answers are padded as hibernate's."""

    async def awake() -> Status:
        sandbox = await wake(plane, owned, None if order is None else order.ttl_seconds)
        return Status(status=sandbox.state.value)

    return PatientPassage(plane.clock, awake)


@router.post("/rollback", response_class=Response, responses=_answering(200, SandboxView, "The sandbox runs."))
async def roll_back_sandbox(plane: ThePlane, owned: TheSandbox, order: RollBack, targets: Targets) -> Response:
    """Let a sandbox be again as it was in a snapshot of it. Long answers are padded as hibernate's."""

    async def rolled_back() -> SandboxView:
        sandbox = await rollback(plane, owned, order.snapshot)
        targets.append(order.snapshot)
        return view(sandbox)

    return PatientPassage(plane.clock, rolled_back)


@router.post("/fork", status_code=201, response_class=Response, responses=_answering(201, Forked, "Every child runs."))
async def fork_sandbox(
    plane: ThePlane,
    owned: TheSandbox,
    targets: Targets,
    wish: Annotated[ForkSandbox | None, Body()] = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Bring living copies of a sandbox to life, all of them or none. Long answers are padded as a create's."""

    async def forked() -> Forked:
        children = await fork(plane, owned, wish or ForkSandbox(), idempotency_key)
        targets.extend(child.id for child in children)
        return forked_view(owned.id, children)

    return PatientPassage(plane.clock, forked, 201)
