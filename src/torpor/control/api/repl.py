"""`/v1/sandboxes/{id}/repl/sessions`: code contexts, interpreters that keep their variables from cell to cell."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Send

from torpor import errors
from torpor.control.api.answers import Patient
from torpor.control.api.deps import IdempotencyKey, ThePlane, TheSandbox
from torpor.control.api.problems import refusals
from torpor.control.api.stream import Told, event
from torpor.control.service import repl
from torpor.control.service.kernel import Said, is_at_rest
from torpor.kit.clock import Clock
from torpor.wire import host
from torpor.wire.repl import PYTHON, CellAnswer, NewSession, RunCode, SessionList, SessionView

router = APIRouter(prefix="/v1/sandboxes/{id}/repl/sessions", tags=["code contexts"])

_REFUSALS = refusals(errors.NotFound, errors.Forbidden, errors.Conflict, errors.SandboxLost)
_RUN_REFUSALS = refusals(
    errors.NotFound, errors.Forbidden, errors.Conflict, errors.SandboxLost, errors.InterpreterLost, errors.ExecTimeout
)
_EVENT = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "enum": ["stdout", "stderr", "result", "exit", "error"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["event", "data"],
}
_STREAMED: dict[str, Any] = {
    "description": (
        "Events `stdout` and `stderr` {chunk}, `result` {data: texts by MIME type}, then `exit` (CellEnd) or `error` "
        "(ErrorBody); comments are beats."
    ),
    "content": {"text/event-stream": {"schema": _EVENT}},
}
# The exit code of a cell that outlasted its timeout, as `timeout` has it, and of one whose interpreter has ended.
_TIMED_OUT, _LOST = 124, 137


async def _named(
    owned: TheSandbox, sid: Annotated[str, Path(description="a code context's id", max_length=64)]
) -> repl.Session:
    return repl.Session(owned, sid)


TheSession = Annotated[repl.Session, Depends(_named)]


@router.post(
    "",
    status_code=201,
    response_class=Response,
    responses={**_REFUSALS, 201: {"model": SessionView, "description": "Its interpreter has begun."}},
)
async def create_session(
    plane: ThePlane, owned: TheSandbox, wish: NewSession, idempotency_key: IdempotencyKey = None
) -> Response:
    """Start an interpreter. It outlives the connection, sleep and the server, and a fork has it, too.

    After 10 s the answer begins as 201 and is padded with spaces until the JSON is there.
    """

    async def made() -> SessionView:
        return _view(owned.id, await repl.create(plane, owned, wish, idempotency_key))

    return Patient(plane.clock, made, status=201)


@router.get("", responses=_REFUSALS)
async def list_sessions(plane: ThePlane, owned: TheSandbox) -> SessionList:
    """List the code contexts that have not ended, the oldest first."""
    return SessionList(items=[_view(owned.id, job) for job in await repl.list_sessions(plane, owned)])


@router.get("/{sid}", responses=_REFUSALS)
async def show_session(plane: ThePlane, session: TheSession) -> SessionView:
    """Show one code context, which may have ended."""
    return _view(session.owned.id, await repl.show(plane, session))


@router.post(
    "/{sid}/run",
    response_class=Response,
    responses={**_RUN_REFUSALS, 200: {"model": CellAnswer, "description": "The cell ended, or raised."}},
)
async def run_code(
    plane: ThePlane, session: TheSession, wish: RunCode, idempotency_key: IdempotencyKey = None
) -> Response:
    """Run a cell, after those that were sent before it, and answer when it has ended.

    After 10 s the answer begins as 200 and is padded with spaces until the JSON is there; a timeout after that is an
    `exit` of 124 with the reason in `error`. Hanging up leaves the cell alone; with a key the same request finds it
    again.
    """
    cell = repl.cell_for(session, wish, idempotency_key)
    return _PatientCell(plane.clock, partial(repl.collect, plane, session, cell))


@router.post("/{sid}/run/stream", response_class=Response, responses={**_RUN_REFUSALS, 200: _STREAMED})
async def stream_code(
    plane: ThePlane, session: TheSession, wish: RunCode, request: Request, idempotency_key: IdempotencyKey = None
) -> Response:
    """Run a cell and send what it writes and shows as server-sent events, as it comes.

    Hanging up leaves the cell alone; with a key the same request hears it again, from its beginning.
    """
    cell = repl.cell_for(session, wish, idempotency_key)
    return _CellEvents(plane.clock, repl.run(plane, session, cell), cell, request.state.request_id)


@router.post("/{sid}/interrupt", status_code=204, responses=_RUN_REFUSALS)
async def interrupt_session(plane: ThePlane, session: TheSession) -> None:
    """Interrupt the cell that runs, as Ctrl-C does: it raises KeyboardInterrupt. Nothing happens if none runs."""
    await repl.interrupt(plane, session)


@router.delete("/{sid}", status_code=204, responses=_REFUSALS)
async def close_session(plane: ThePlane, session: TheSession) -> None:
    """End an interpreter and the processes that it has started. It is no error if it has ended."""
    await repl.close(plane, session)


def _view(sandbox_id: str, job: host.Job) -> SessionView:
    outcome = job.outcome
    return SessionView(
        id=job.id,
        sandbox_id=sandbox_id,
        language=PYTHON,
        status="ended" if outcome is not None else "idle" if is_at_rest(job) else "busy",
        user=job.user,
        created_at=datetime.fromtimestamp(job.started_at, UTC),
        exit_code=None if outcome is None else outcome.exit_code,
        signal=None if outcome is None else outcome.signal,
    )


class _PatientCell(Patient):
    """A cell's collected result. What ends it badly after padding began is told in it."""

    async def result(self) -> BaseModel:
        begin = self._clock.monotonic()
        try:
            return await self._make()
        except (errors.ExecTimeout, errors.InterpreterLost) as error:
            if not self._begun:
                raise
            return CellAnswer(
                exit=_TIMED_OUT if isinstance(error, errors.ExecTimeout) else _LOST,
                error=error.message,
                error_name=type(error).__name__,
                duration_ms=round((self._clock.monotonic() - begin) * 1000),
                execution_count=0,
                stdout=error.stdout,
                stderr=error.stderr,
            )


class _CellEvents(Told):
    """What a cell writes and shows as it comes, then `exit` or `error`."""

    def __init__(
        self,
        clock: Clock,
        saying: AbstractAsyncContextManager[AsyncIterator[Said]],
        cell: repl.Cell,
        request_id: str,
    ) -> None:
        super().__init__(clock, request_id)
        self._saying = saying
        self._cell = cell

    async def run(self, send: Send) -> None:
        async with self._saying as saying:
            async for said in saying:
                await self.start(send, beat=False)
                await self.give(send, self._told(said))

    def _told(self, said: Said) -> bytes:
        if said.kind == "done":
            return event("exit", repl.end_of(said, self._cell).model_dump())
        return event(said.kind, {"data": said.data} if said.kind == "result" else {"chunk": said.text})
