"""`/v1/sandboxes/{id}/exec`: run a command, collected or streamed."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from torpor import errors
from torpor.control.api.answers import PatientCommand
from torpor.control.api.deps import IdempotencyKey, ThePlane, TheSandbox
from torpor.control.api.problems import refusals
from torpor.control.api.stream import STREAMED, Events, Listened
from torpor.control.service.execute import collect, execute, has_job, job_for, order_for
from torpor.wire.public import ExecAnswer, ExecCommand

router = APIRouter(prefix="/v1/sandboxes", tags=["execs"])

_REFUSALS = refusals(
    errors.NotFound, errors.Forbidden, errors.Conflict, errors.SandboxLost, errors.ExecTimeout, errors.OutOfSpace
)
_PROCESS_ID = {
    "X-Process-Id": {
        "description": "the id of the command as a process; only with an Idempotency-Key",
        "schema": {"type": "string"},
    }
}


@router.post(
    "/{id}/exec",
    response_class=Response,
    responses={
        **_REFUSALS,
        200: {"model": ExecAnswer, "description": "The command ended, with any exit code.", "headers": _PROCESS_ID},
    },
)
async def run_command(
    plane: ThePlane, owned: TheSandbox, command: ExecCommand, idempotency_key: IdempotencyKey = None
) -> Response:
    """Run a command and answer when it has ended.

    After 10 s the answer begins as 200 and is padded with spaces until the JSON is there. Hanging up kills the command,
    unless it came with a key: then it goes on, and the same request finds it again; so does `key:` and the key, in the
    place of a process's id.
    """
    job = job_for(owned, idempotency_key)
    return PatientCommand(plane.clock, partial(collect, plane, owned, order_for(command, job)), job)


@router.post(
    "/{id}/exec/stream", response_class=Response, responses={**_REFUSALS, 200: {**STREAMED, "headers": _PROCESS_ID}}
)
async def stream_command(
    plane: ThePlane,
    owned: TheSandbox,
    command: ExecCommand,
    request: Request,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Run a command and send its output as server-sent events while it runs.

    Hanging up kills the command, unless it came with a key: then it goes on, and the same request listens to it again,
    from `stdout_from` and `stderr_from` on.
    """
    order = order_for(command, job := job_for(owned, idempotency_key))
    is_there = None if job is None else partial(has_job, plane, owned, job)
    listened = Listened(command.encoding, job, command.timeout_seconds, is_there)
    return Events(plane.clock, execute(plane, owned, order), listened, request.state.request_id)
