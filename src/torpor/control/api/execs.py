"""`/v1/sandboxes/{id}/exec`: run a command, collected or streamed."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from torpor import errors
from torpor.control.api.answers import PatientCommand
from torpor.control.api.deps import ThePlane, TheSandbox
from torpor.control.api.problems import refusals
from torpor.control.api.stream import Events
from torpor.control.service.execute import collect, execute, order_for
from torpor.wire.public import ExecAnswer, ExecCommand

router = APIRouter(prefix="/v1/sandboxes", tags=["execs"])

_REFUSALS = refusals(
    errors.NotFound, errors.Forbidden, errors.Conflict, errors.SandboxLost, errors.ExecTimeout, errors.OutOfSpace
)
# One event, as those see it who read the stream event by event.
_EVENT = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "enum": ["stdout", "stderr", "exit", "error"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["event", "data"],
}
_STREAM = "Events `stdout` and `stderr` {chunk}, then `exit` (StreamExit) or `error` (ErrorBody); comments are beats."


@router.post(
    "/{id}/exec",
    response_class=Response,
    responses={**_REFUSALS, 200: {"model": ExecAnswer, "description": "The command ended, with any exit code."}},
)
async def run_command(plane: ThePlane, owned: TheSandbox, command: ExecCommand) -> Response:
    """Run a command and answer when it has ended.

    After 10 s the answer begins as 200 and is padded with spaces until the JSON is there. Hanging up kills the command.
    """
    return PatientCommand(plane.clock, partial(collect, plane, owned, order_for(command)))


@router.post(
    "/{id}/exec/stream",
    response_class=Response,
    responses={
        **_REFUSALS,
        200: {"description": _STREAM, "content": {"text/event-stream": {"schema": _EVENT}}},
    },
)
async def stream_command(plane: ThePlane, owned: TheSandbox, command: ExecCommand, request: Request) -> Response:
    """Run a command and send its output as server-sent events while it runs. Hanging up kills the command."""
    order = order_for(command)
    request_id: str = request.state.request_id
    return Events(plane.clock, execute(plane, owned, order), order, command.encoding, request_id)
