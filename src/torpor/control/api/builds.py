"""`/v1/templates/build` and `/v1/templates/builds`: templates are ordered, followed and cancelled."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request
from starlette.responses import Response

from torpor import errors
from torpor.control.api.build_body import BuildBody
from torpor.control.api.deps import IdempotencyKey, Targets, TheCaller, ThePlane, Workspace
from torpor.control.api.problems import refusals
from torpor.control.api.stream import Following
from torpor.control.service import builds
from torpor.control.service.builds import Wish
from torpor.control.service.claims import checked_key
from torpor.control.service.plane import Plane
from torpor.errors import TorporError
from torpor.kit.shielded import shielded
from torpor.model.access import Caller
from torpor.model.builds import Build
from torpor.model.ids import BuildId, new_build_id
from torpor.wire.templates import END, BuildList, BuildTemplate, BuildView, marked

router = APIRouter(prefix="/v1/templates", tags=["templates"])

BuildName = Annotated[str, Path(description="a build's id", max_length=64)]
_ONE = refusals(errors.NotFound)
_ORDERED = refusals(
    errors.NotFound, errors.Forbidden, errors.Conflict, errors.TooLarge, errors.QuotaExceeded, errors.OutOfSpace
)
_FIELDS = BuildTemplate.model_json_schema()
_FILES = {
    "rootfs": {"type": "string", "format": "binary", "description": "a root file system, as a tar"},
    "image": {"type": "string", "format": "binary", "description": "an image, as an OCI or Docker archive"},
}
_FORM = {**_FIELDS, "properties": {**_FIELDS["properties"], **_FILES}, "additionalProperties": {"format": "binary"}}
_BODY = {
    "required": True,
    "description": "Files beside `dockerfile` are its context, each under its path; fields come before files.",
    "content": {
        "application/json": {"schema": _FIELDS},
        "application/x-www-form-urlencoded": {"schema": _FIELDS},
        "multipart/form-data": {"schema": _FORM},
    },
}
_LOG: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events `line`, with a line as data and its number as id, then `end`; comments are beats.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


@router.post("/build", status_code=202, responses=_ORDERED, openapi_extra={"requestBody": _BODY})
async def build_template(
    plane: ThePlane, caller: TheCaller, request: Request, targets: Targets, idempotency_key: IdempotencyKey = None
) -> BuildView:
    """Order a template: of an image, a Dockerfile with its context, a root file system, or a snapshot. It is queued."""
    key = None if idempotency_key is None else checked_key(idempotency_key)
    new = new_build_id()
    async with plane.quotas.sending_build(caller.workspace, new, key):
        build = await _ordered(plane, caller, request, new, key)
    targets += [build.id, build.name]
    return await _view(plane, build)


async def _ordered(plane: Plane, caller: Caller, request: Request, new: BuildId, key: str | None) -> Build:
    body = BuildBody(plane.host, new)
    is_taken = False
    try:
        asked = await body.take(request)
        build = await builds.order_build(plane, caller, Wish(new, asked, body.files), key)
        is_taken = build.id == new
        return build
    finally:
        if not is_taken:
            await shielded(_remove(plane, new))


async def _remove(plane: Plane, build: BuildId) -> None:
    with suppress(TorporError):  # the host sweeps what it has of builds that never ran
        await plane.host.remove_build(build)


@router.get("/builds", responses=refusals())
async def list_builds(plane: ThePlane, workspace: Workspace) -> BuildList:
    """List the builds of the caller's workspace, the newest first: those under way, and the last hundred that ended."""
    positions = await plane.builder.positions()
    return BuildList(items=[view_of(build, positions.get(build.id)) for build in await plane.store.builds(workspace)])


@router.get("/builds/{build}", responses=_ONE)
async def show_build(plane: ThePlane, workspace: Workspace, build: BuildName) -> BuildView:
    """Show how far a build has come."""
    return await _view(plane, await builds.show_build(plane, workspace, build))


@router.get("/builds/{build}/logs", response_class=Response, responses={**_ONE, **_LOG})
async def build_log(
    plane: ThePlane,
    workspace: Workspace,
    build: BuildName,
    follow: Annotated[bool, Query(description="go on until the build has ended")] = False,
    last_event_id: Annotated[
        int | None, Header(description="where a stream that broke goes on", ge=0, le=2**31)
    ] = None,
) -> Response:
    """Read what a build has said, as server-sent events."""
    found = await builds.show_build(plane, workspace, build)
    return Following(plane.clock, _followed(plane, found, last_event_id or 0, follow=follow), _event(END, END))


@router.delete("/builds/{build}", status_code=204, responses=_ONE)
async def cancel_build(plane: ThePlane, workspace: Workspace, build: BuildName) -> None:
    """Cancel a build that waits or runs; fine if it has ended."""
    await builds.cancel_build(plane, workspace, build)


async def _view(plane: Plane, build: Build) -> BuildView:
    positions = await plane.builder.positions() if build.is_open else {}
    return view_of(build, positions.get(build.id))


def view_of(build: Build, position: int | None) -> BuildView:
    """Return a build as clients see it."""
    return BuildView(
        id=build.id,
        name=build.name,
        status=build.status.value,
        kind=build.kind,
        is_global=build.is_global,
        workspace=build.workspace,
        created_at=build.created_at,
        started_at=build.started_at,
        ended_at=build.ended_at,
        error=build.error,
        cancelled=build.is_cancelled,
        image_ref=build.image_ref,
        size_mb=build.size_mb,
        bytes=build.bytes,
        position=position,
    )


async def _followed(plane: Plane, build: Build, after: int, *, follow: bool) -> AsyncGenerator[bytes, None]:
    async with aclosing(builds.log_of(plane, build, after, follow=follow)) as lines:
        async for line in lines:
            yield f"id: {line.number}\n".encode() + _event("line", marked(line.text))


def _event(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()
