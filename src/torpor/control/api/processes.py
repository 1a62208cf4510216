"""`/v1/sandboxes/{id}/processes`: commands with an id: start, list, show, listen, send input and signals."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from torpor import errors
from torpor.control.api.answers import Patient
from torpor.control.api.deps import IdempotencyKey, ThePlane, TheSandbox
from torpor.control.api.problems import refusals
from torpor.control.api.stream import STREAMED, Events, Listened
from torpor.control.api.views import process_view
from torpor.control.service import processes
from torpor.control.service.execute import has_job
from torpor.model.ids import JobId
from torpor.wire.processes import Fed, ProcessList, ProcessView, SendSignal, StartProcess, TerminalSize

router = APIRouter(prefix="/v1/sandboxes/{id}/processes", tags=["processes"])

_REFUSALS = refusals(errors.NotFound, errors.Forbidden, errors.Conflict, errors.SandboxLost, errors.OutOfSpace)
_INPUT = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}

ProcessId = Annotated[
    str,
    Path(
        description="a process's id, or `key:` and the idempotency key that it was ordered with (without slashes)",
        max_length=512,
    ),
]
# As large as a file of any guest can be.
Offset = Annotated[int, Query(ge=0, le=2**63 - 1)]


async def _since(stdout_from: Offset = 0, stderr_from: Offset = 0) -> processes.Offsets:
    return processes.Offsets(stdout_from, stderr_from)


def _answering(status: int, model: type[Any], description: str) -> dict[int | str, dict[str, Any]]:
    return {**_REFUSALS, status: {"model": model, "description": description}}


@router.post("", status_code=201, responses=_answering(201, ProcessView, "It runs, or ran."))
async def start_process(
    plane: ThePlane, owned: TheSandbox, wish: StartProcess, idempotency_key: IdempotencyKey = None
) -> ProcessView:
    """Start a command that runs on its own, and answer at once. It outlives the connection, sleep, and the server."""
    return process_view(owned.id, await processes.start(plane, owned, wish, idempotency_key))


@router.get("", responses=_REFUSALS)
async def list_processes(plane: ThePlane, owned: TheSandbox) -> ProcessList:
    """List the commands that run, and those that have ended and are remembered, the oldest first."""
    found = await processes.list_processes(plane, owned)
    return ProcessList(items=[process_view(owned.id, job) for job in found])


@router.get("/{pid}", responses=_REFUSALS)
async def show_process(plane: ThePlane, owned: TheSandbox, pid: ProcessId) -> ProcessView:
    """Show one command."""
    return process_view(owned.id, await processes.show_process(plane, owned, pid))


@router.get("/{pid}/stream", response_class=Response, responses={**_REFUSALS, 200: STREAMED})
async def stream_process(
    plane: ThePlane,
    owned: TheSandbox,
    pid: ProcessId,
    since: Annotated[processes.Offsets, Depends(_since)],
    request: Request,
    encoding: Literal["text", "base64"] = "text",
) -> Response:
    """Send a command's output as server-sent events, from offsets in bytes on, until it has ended.

    Hanging up leaves the command alone.
    """
    job = processes.job_named(owned, pid)
    frames = processes.listen(plane, owned, job, since)
    # Where nothing comes, this is what tells a command that is silent from one that is out of reach.
    listened = Listened(encoding, job, is_there=partial(has_job, plane, owned, JobId(job)))
    return Events(plane.clock, frames, listened, request.state.request_id)


@router.post(
    "/{pid}/stdin",
    response_class=Response,
    responses=_answering(200, Fed, "The command's input took it all."),
    openapi_extra={"requestBody": {"content": _INPUT}},
)
async def feed_process(
    plane: ThePlane, owned: TheSandbox, pid: ProcessId, request: Request, close: bool = False
) -> Response:
    """Send the body's bytes to a command's input, and with `close` end that.

    After 10 s of a command that does not read, the answer begins as 200 and is padded with spaces until all is taken.
    """
    data = await request.body()

    async def fed() -> Fed:
        return Fed(bytes=await processes.feed(plane, owned, pid, data, close=close))

    return Patient(plane.clock, fed)


@router.post("/{pid}/resize", status_code=204, responses=_REFUSALS)
async def resize_process(plane: ThePlane, owned: TheSandbox, pid: ProcessId, size: TerminalSize) -> None:
    """Give a command's terminal another size; its programs are told by SIGWINCH."""
    await processes.resize(plane, owned, pid, size)


@router.post("/{pid}/signal", status_code=204, responses=_REFUSALS)
async def signal_process(plane: ThePlane, owned: TheSandbox, pid: ProcessId, order: SendSignal) -> None:
    """Send a command a signal: all its processes for SIGKILL, its process group for any other."""
    await processes.send_signal(plane, owned, pid, order.signal)
