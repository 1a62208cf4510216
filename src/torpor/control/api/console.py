"""`/v1/sandboxes/{id}/logs`: what a machine wrote on its console, as text or followed line by line."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from torpor import errors
from torpor.control.api.answers import Piped
from torpor.control.api.deps import ThePlane, TheSandbox
from torpor.control.api.problems import refusals
from torpor.control.api.stream import Following
from torpor.control.service import files
from torpor.control.service.console import follow_console
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, show
from torpor.wire.logs import LogLine

router = APIRouter(prefix="/v1/sandboxes/{id}", tags=["files"])

_TEXT: dict[int | str, dict[str, Any]] = {
    **refusals(errors.NotFound, errors.Conflict, errors.SandboxLost),
    200: {
        "description": "What the machine wrote to its console. Followed, an event a line: `{line}`.",
        "content": {"text/plain": {"schema": {"type": "string"}}, "text/event-stream": {"schema": {"type": "string"}}},
    },
}


@router.get("/logs", response_class=Response, responses=_TEXT)
async def read_console(
    plane: ThePlane,
    owned: TheSandbox,
    follow: Annotated[bool, Query(description="go on, as server-sent events, until it is deleted")] = False,
    stream: Annotated[
        Literal["both", "stdout", "stderr"], Query(description="a console has one stream only: all of these are it")
    ] = "both",
) -> Response:
    """Read the machine's console. A sandbox that sleeps is not woken."""
    del stream
    if not follow:
        return Piped(files.logs(plane, owned), "text/plain; charset=utf-8")
    await show(plane, owned)
    return Following(plane.clock, _followed(plane, owned))


async def _followed(plane: Plane, owned: Owned) -> AsyncGenerator[bytes, None]:
    async with aclosing(follow_console(plane, owned)) as lines:
        async for line in lines:
            yield f"data: {ascii_json(line)}\n\n".encode("ascii")


def ascii_json(line: str) -> str:
    """Return a line as a JSON object in ASCII, on one line."""
    return LogLine(line=line).model_dump_json(ensure_ascii=True)
