"""Code contexts: interpreters in a sandbox that keep their variables from cell to cell.

Each is a process of the guest, and found again by its id: so it outlives clients, sleep and the server, and a fork has
it, too. Nothing of it is kept here.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from torpor.control.service import kernel, sandboxes
from torpor.control.service.awake import ask, reached
from torpor.control.service.claims import checked_key
from torpor.control.service.execute import order_for
from torpor.control.service.kernel import Said
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned
from torpor.errors import (
    Busy,
    Conflict,
    ExecTimeout,
    Failed,
    InterpreterLost,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    TorporError,
)
from torpor.kit.race import Overtaken, race
from torpor.kit.shielded import shielded
from torpor.model.ids import context_id_from, is_context_id, job_id_from, new_context_id
from torpor.wire import host
from torpor.wire.frames import Frame
from torpor.wire.public import MAX_COLLECTED_BYTES, ExecCommand
from torpor.wire.repl import MAX_RESULTS_BYTES, CellAnswer, CellEnd, NewSession, RunCode

# An interpreter that has not begun after this many seconds will not.
_START_S = 120.0
_TOLD_CHARACTERS = 200
# What a shell says of a program that it cannot run.
_CANNOT_RUN = (126, 127)


@dataclass(frozen=True, slots=True)
class Session:
    """A code context as its owner names it."""

    owned: Owned
    id: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: what is to be run, under an id by which it is known again."""

    id: str
    code: str
    timeout_s: float | None


def cell_for(session: Session, wish: RunCode, key: str | None) -> Cell:
    """Return a cell; with an idempotency key it is the same as before. Raises InvalidRequest for a key that is none."""
    owned = session.owned
    made = secrets.token_hex(16) if key is None else job_id_from(owned.workspace, session.id, checked_key(key))
    return Cell(made, wish.code, wish.timeout_s)


async def create(plane: Plane, owned: Owned, wish: NewSession, key: str | None = None) -> host.Job:
    """Start an interpreter, and return it when it has begun; with a key used before, return the one of then.

    Raises Conflict if there is no Python in the sandbox, InterpreterLost if it ended at once, and as `ask` does.
    """
    own = None if key is None else context_id_from(owned.workspace, owned.id, checked_key(key))
    command = order_for(ExecCommand(cmd=kernel.argv(), cwd=wish.cwd, env=wish.env, user=wish.user))
    given = command.model_dump(exclude={"job", "stdin"})
    order = host.JobOrder(**given, job=own or new_context_id(), stdin=kernel.program(), open_stdin=True)
    job = await ask(plane, owned, lambda: plane.host.start(owned.id, order))
    session = Session(owned, job.id)
    try:
        if job.stdout_start == 0:  # else it has been ready for long
            await race(_wait_ready(plane, session), plane.clock.sleep(_START_S))
    except InterpreterLost as error:
        ended = (await show(plane, session)).outcome
        if ended is not None and ended.exit_code in _CANNOT_RUN:
            raise Conflict(
                "there is no python3 in this sandbox to run code with",
                hint="use a template that has it, such as code-interpreter",
            ) from error
        raise
    except Overtaken as error:
        await close(plane, session)
        raise Failed(f"the interpreter has not begun within {_START_S:.0f} s") from error
    except (asyncio.CancelledError, TorporError):
        if own is None:  # nobody knows of it
            with suppress(TorporError):
                await shielded(close(plane, session))
        raise
    return job


async def list_sessions(plane: Plane, owned: Owned) -> list[host.Job]:
    """Return the interpreters of a sandbox that have not ended, the oldest first."""
    jobs = await ask(plane, owned, lambda: plane.host.jobs(owned.id))
    return [job for job in jobs if is_context_id(job.id) and job.outcome is None]


async def show(plane: Plane, session: Session) -> host.Job:
    """Return one interpreter, which may have ended. Raises NotFound, and as `ask` does."""
    if not is_context_id(session.id):
        raise NotFound(f"there is no code context {session.id}")
    return await ask(plane, session.owned, lambda: plane.host.job(session.owned.id, session.id))


async def interrupt(plane: Plane, session: Session) -> None:
    """Interrupt the cell that runs, if one does. Raises NotFound, InterpreterLost, and as `ask` does."""
    await _alive(plane, session)
    await _signal(plane, session, "SIGINT")


async def close(plane: Plane, session: Session) -> None:
    """End an interpreter and what it has started; fine if there is none (any more). Raises as `ask` does."""
    await sandboxes.show(plane, session.owned)
    if not is_context_id(session.id):
        return
    with suppress(Conflict, NotFound):
        await _signal(plane, session, "SIGKILL")


@asynccontextmanager
async def run(plane: Plane, session: Session, cell: Cell) -> AsyncIterator[AsyncIterator[Said]]:
    """Run a cell, after those that were sent before it, and yield what is said of it, `done` last.

    Leaving the block leaves the cell alone. One that came before is not run again: what was said of it is yielded from
    its beginning on.

    Raises NotFound, InterpreterLost, Busy if too many cells wait, OutcomeUnknown if the cell came before and what was
    said of it is not kept any more, and as `reached` does.
    """
    job = await _alive(plane, session)
    await _hand_over(plane, session, cell)  # first: a host may begin to answer who listens when there is something
    async with _listening(plane, session, job.stdout_bytes, job.stderr_bytes) as frames:
        heard = kernel.messages(frames, begin=cell.id)
        first = await anext(heard)
        if first.kind == "full":
            raise Busy("too many cells wait in this code context")
        if first.kind != "again":
            yield _of(plane, session, cell, heard)
            return
    if first.at < job.stdout_start:
        raise OutcomeUnknown("the cell was run before, and what it wrote is not kept any more")
    async with _listening(plane, session, first.at, job.stderr_bytes) as frames:
        yield _of(plane, session, cell, kernel.messages(frames))


async def collect(plane: Plane, session: Session, cell: Cell) -> CellAnswer:
    """Run a cell and return all of it, each stream up to MAX_COLLECTED_BYTES.

    Raises ExecTimeout and InterpreterLost, with what it wrote, and as `run` does.
    """
    written = {"stdout": _Held(), "stderr": _Held()}
    shown = _Shown()
    try:
        async with run(plane, session, cell) as saying:
            async for said in saying:
                if said.kind == "done":
                    end = end_of(said, cell)
                elif said.kind == "result":
                    shown.add(said.data)
                else:
                    written[said.kind].add(said.text)
    except (ExecTimeout, InterpreterLost) as error:
        error.stdout, error.stderr = written["stdout"].text(), written["stderr"].text()
        raise
    is_cut = written["stdout"].is_cut or written["stderr"].is_cut or shown.is_cut
    texts = {name: held.text() for name, held in written.items()}
    told = end.model_dump() | texts | {"results": shown.bundles, "truncated": end.truncated or is_cut}
    return CellAnswer.model_validate(told)


def end_of(said: Said, cell: Cell) -> CellEnd:
    """Return how a cell ended, as its `done` says. Raises ExecTimeout if it outlasted its timeout."""
    if said.timed_out:
        after = "" if cell.timeout_s is None else f" after {cell.timeout_s:g} s"
        if said.ended:
            raise ExecTimeout(
                f"cell timeout{after}: it did not heed the interrupt, so its interpreter was ended",
                hint="make another code context; variables of this one are gone, files are not",
            )
        raise ExecTimeout(f"cell timeout{after}: it was interrupted", hint="the code context goes on")
    return CellEnd(
        exit=said.exit,
        error=said.error,
        error_name=said.error_name,
        duration_ms=said.duration_ms,
        execution_count=said.number,
        truncated=said.truncated,
    )


class _Held:
    """What is kept of one stream."""

    def __init__(self) -> None:
        self.is_cut = False
        self._data = bytearray()

    def add(self, text: str) -> None:
        """Take a text in as far as there is room."""
        data = text.encode(errors="replace")
        room = MAX_COLLECTED_BYTES - len(self._data)
        self.is_cut = self.is_cut or len(data) > room
        self._data += data[:room]

    def text(self) -> str:
        return self._data.decode(errors="ignore")


class _Shown:
    """The bundles that are kept of a cell: no more than its interpreter would send, whatever comes."""

    def __init__(self) -> None:
        self.is_cut = False
        self.bundles: list[dict[str, str]] = []
        self._room = MAX_RESULTS_BYTES

    def add(self, bundle: dict[str, str]) -> None:
        """Take a bundle in if there is room."""
        size = len(json.dumps(bundle))
        if size > self._room:
            self.is_cut = True
            return
        self._room -= size
        self.bundles.append(bundle)


async def _alive(plane: Plane, session: Session) -> host.Job:
    job = await show(plane, session)
    if job.outcome is not None:
        raise kernel.lost(job.outcome)
    return job


async def _wait_ready(plane: Plane, session: Session) -> None:
    async with _listening(plane, session, 0, 0) as frames:
        said = await anext(kernel.messages(frames))
    if said.kind != "ready":
        raise kernel.broken()


@asynccontextmanager
async def _listening(
    plane: Plane, session: Session, stdout_from: int, stderr_from: int
) -> AsyncIterator[AsyncIterator[Frame]]:
    listen = partial(plane.host.attach, session.owned.id, session.id, stdout_from, stderr_from)
    async with AsyncExitStack() as stack:
        try:
            frames = await stack.enter_async_context(reached(plane, session.owned, listen))
        except InvalidRequest as error:  # so much has come since it was looked at
            message = "the cell may have run, but more has come from the interpreter since than is kept"
            raise OutcomeUnknown(message, hint="let the cell write less, or write to a file") from error
        yield frames


async def _hand_over(plane: Plane, session: Session, cell: Cell) -> None:
    owned, order = session.owned, kernel.order(cell.id, cell.code, cell.timeout_s)
    async with plane.contexts.hold(f"{owned.id}/{session.id}"):
        try:
            await ask(plane, owned, lambda: plane.host.feed(owned.id, session.id, order, close=False))
        except Conflict as error:
            await _alive(plane, session)
            raise Busy("somebody else is sending this code context a cell") from error


async def _signal(plane: Plane, session: Session, name: str) -> None:
    owned = session.owned
    await ask(plane, owned, lambda: plane.host.signal(owned.id, session.id, host.Signal(signal=name)))


async def _of(plane: Plane, session: Session, cell: Cell, heard: AsyncIterator[Said]) -> AsyncIterator[Said]:
    """Yield what is said of a cell, and note its end."""
    try:
        async for said in heard:
            if said.cell != cell.id or said.kind not in ("stdout", "stderr", "result", "done"):
                continue
            if said.kind == "done":
                _note(plane, session, cell, said)
            yield said
            if said.kind == "done":
                return
    except Failed as error:
        if error.code == Failed.code:  # nothing that it says can be made sense of any more
            with suppress(TorporError):
                await close(plane, session)
        raise


def _note(plane: Plane, session: Session, cell: Cell, said: Said) -> None:
    owned = session.owned
    if plane.once.is_first("cell", owned.id, cell.id):
        plane.noter.note(
            "exec",
            owned,
            command=cell.code.strip()[:_TOLD_CHARACTERS],
            kind="cell",
            exit_code=said.exit,
            timed_out=said.timed_out,
            duration_ms=said.duration_ms,
        )
        plane.pace.command_ended(owned.id)
