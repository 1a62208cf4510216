"""`/v1/events` and `/v1/sandboxes/{id}/events`: what happened, in pages or as a stream that goes on."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query
from starlette.responses import JSONResponse, Response

from torpor import errors
from torpor.control.api.deps import ThePlane, TheSandbox, Workspace
from torpor.control.api.problems import refusals
from torpor.control.api.stream import Following
from torpor.control.api.views import event_view
from torpor.control.service.events import LATEST, follow, owner_of, page, place_of
from torpor.control.service.plane import Plane
from torpor.control.store.contract import Event, EventListing
from torpor.model.ids import SandboxId, WorkspaceId
from torpor.wire.events import EventPage

router = APIRouter(prefix="/v1", tags=["events"])

_EVENT = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string"},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["id", "event", "data"],
}
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "model": EventPage,
        "description": "A page; or with `follow` a stream of events whose data is an EventView, comments being beats.",
        "content": {"text/event-stream": {"schema": _EVENT}},
    }
}


@dataclass(frozen=True, slots=True)
class Asked:
    """Which events a request asks for."""

    cursor: str | None
    limit: int
    types: frozenset[str]
    follow: bool


async def asked(
    cursor: Annotated[
        str | None,
        Query(description=f"`next_cursor` of a page, or `{LATEST}`: what happens from now on", max_length=32),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    type: Annotated[list[str] | None, Query(description="only events of these types", max_length=32)] = None,
    follow: Annotated[bool, Query(description="go on with what happens, as server-sent events")] = False,
    last_event_id: Annotated[
        str | None, Header(description="where a stream that broke goes on; comes before `cursor`", max_length=32)
    ] = None,
) -> Asked:
    """Return what a request asks for."""
    return Asked(last_event_id or cursor, limit, frozenset(type or ()), follow)


TheAsked = Annotated[Asked, Depends(asked)]


@router.get("/events", response_class=Response, responses={**refusals(), **_ANSWER})
async def list_events(plane: ThePlane, workspace: Workspace, asked: TheAsked) -> Response:
    """List what happened to all sandboxes, the earliest first, also to deleted ones, or follow it."""
    return await _answer(plane, workspace, None, asked)


@router.get("/sandboxes/{id}/events", response_class=Response, responses={**refusals(errors.NotFound), **_ANSWER})
async def list_sandbox_events(plane: ThePlane, owned: TheSandbox, asked: TheAsked) -> Response:
    """List what happened to a sandbox, the earliest first, also to one that is deleted, or follow it."""
    return await _answer(plane, await owner_of(plane, owned), owned.id, asked)


async def _answer(plane: Plane, workspace: WorkspaceId, sandbox: SandboxId | None, asked: Asked) -> Response:
    after = await place_of(plane, asked.cursor)
    listing = EventListing(workspace, sandbox, after, asked.limit, asked.types)
    if asked.follow:
        return Following(plane.clock, _followed(plane, listing))
    found = await page(plane, listing)
    last = found[-1].number if found else after
    shown = EventPage(items=[event_view(event) for event in found], next_cursor=str(last))
    return JSONResponse(shown.model_dump(mode="json"))


async def _followed(plane: Plane, listing: EventListing) -> AsyncGenerator[bytes, None]:
    async with aclosing(follow(plane, listing)) as events:
        async for event in events:
            yield told(event)


def told(event: Event) -> bytes:
    """Return an event as a server-sent one: its data is a JSON object in ASCII on one line."""
    data = json.dumps(event_view(event).model_dump(mode="json"))
    return f"id: {event.number}\nevent: {event.type}\ndata: {data}\n\n".encode("ascii")
