"""Processes: commands with an id, which outlive whoever started them; what the guest, woken first, is asked of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from torpor.control.service.awake import ask, reached
from torpor.control.service.claims import checked_key
from torpor.control.service.execute import Told, job_for, noticing_end, order_for, spoken
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned
from torpor.errors import InvalidRequest, NotFound
from torpor.model.ids import is_job_id, job_id_from, new_job_id
from torpor.wire import host
from torpor.wire.frames import Frame
from torpor.wire.processes import MAX_INPUT_BYTES, StartProcess, TerminalSize

# What a process is named by whose id is not known: this, and the key it was ordered with.
_BY_KEY = "key:"


async def start(plane: Plane, owned: Owned, wish: StartProcess, key: str | None = None) -> host.Job:
    """Start a command and return it; with an idempotency key used before, return the one of then.

    Raises InvalidRequest, Conflict for a key that came with another command, and as `ask` does.
    """
    job = job_for(owned, key) or new_job_id()
    order = _order_of(wish, job)
    started = await ask(plane, owned, lambda: plane.host.start(owned.id, order))
    if plane.once.is_first("start", owned.id, job):
        plane.noter.note("process", owned, job=job, command=spoken(order))
    return started


def _order_of(wish: StartProcess, job: str) -> host.JobOrder:
    is_shell = wish.terminal is not None and wish.cmd in ("", [])
    named = wish.model_copy(update={"cmd": ["-"]}) if is_shell else wish
    plain = order_for(named).model_dump(exclude={"job", "terminal"})
    if wish.terminal is not None and plain["stdin"] is not None:
        raise InvalidRequest("a terminal's input is typed: stdin cannot be given together with terminal")
    return host.JobOrder(
        **plain | ({"argv": []} if is_shell else {}),
        job=job,
        open_stdin=wish.open_stdin,
        terminal=None if wish.terminal is None else host.TerminalSize(**wish.terminal.model_dump()),
        hangup_s=wish.hangup_seconds,
    )


async def list_processes(plane: Plane, owned: Owned) -> list[host.Job]:
    """Return what runs in a sandbox and what has ended and is remembered, the oldest first."""
    return await ask(plane, owned, lambda: plane.host.jobs(owned.id))


async def show_process(plane: Plane, owned: Owned, pid: str) -> host.Job:
    """Return one command. Raises NotFound, and as `ask` does."""
    job = job_named(owned, pid)
    return await ask(plane, owned, lambda: plane.host.job(owned.id, job))


@dataclass(frozen=True, slots=True)
class Offsets:
    """From where on a command's output is wanted, in bytes."""

    stdout: int = 0
    stderr: int = 0


@asynccontextmanager
async def listen(plane: Plane, owned: Owned, pid: str, since: Offsets) -> AsyncIterator[AsyncIterator[Frame]]:
    """Yield a command's output from offsets in bytes on, and EXIT last. Leaving the block leaves the command alone.

    Raises NotFound, InvalidRequest for an offset whose output is not kept any more, or is not there yet, and as
    `reached` does.
    """
    job = await show_process(plane, owned, pid)
    told = Told(job.id, job.command, is_exec=job.waited_for)
    async with reached(plane, owned, lambda: plane.host.attach(owned.id, job.id, since.stdout, since.stderr)) as frames:
        yield noticing_end(plane, owned, told, frames)


async def feed(plane: Plane, owned: Owned, pid: str, data: bytes, *, close: bool) -> int:
    """Send a command input, `close` its input after that, and return how many bytes it took, which are all.

    Waits for as long as the command does not read. Raises NotFound, InvalidRequest for more than MAX_INPUT_BYTES,
    Conflict if its input is closed, and as `ask` does.
    """
    if len(data) > MAX_INPUT_BYTES:
        raise InvalidRequest(
            f"the input is {len(data)} bytes, and at most {MAX_INPUT_BYTES} fit into a request",
            hint="send it in parts",
        )
    job = job_named(owned, pid)
    return await ask(plane, owned, lambda: plane.host.feed(owned.id, job, data, close=close))


async def feed_as_it_comes(
    plane: Plane, owned: Owned, pid: str, pieces: Callable[[], AsyncIterator[bytes]], *, close: bool
) -> int:
    """Send a command input as it comes, until that ends, and return how many bytes it took. Raises as `feed`.

    `pieces` is called again where the host could not begin.
    """
    job = job_named(owned, pid)
    return await ask(plane, owned, lambda: plane.host.feed(owned.id, job, pieces(), close=close))


async def resize(plane: Plane, owned: Owned, pid: str, size: TerminalSize) -> None:
    """Give a command's terminal another size. Raises NotFound, Conflict if it is gone, InvalidRequest, and as `ask`."""
    job, wanted = job_named(owned, pid), host.TerminalSize(rows=size.rows, cols=size.cols)
    await ask(plane, owned, lambda: plane.host.resize(owned.id, job, wanted))


async def send_signal(plane: Plane, owned: Owned, pid: str, signal: str) -> None:
    """Send a command a signal by its name. Raises NotFound, InvalidRequest, Conflict if it has ended, and as `ask`."""
    job = job_named(owned, pid)
    await ask(plane, owned, lambda: plane.host.signal(owned.id, job, host.Signal(signal=signal)))


def named_by(key: str) -> str:
    """Return how a command is named by the idempotency key it came with."""
    return f"{_BY_KEY}{key}"


def job_named(owned: Owned, pid: str) -> str:
    """Return the id of the command that is meant by an id, or by `key:` and the idempotency key it came with.

    Raises NotFound for what is neither, InvalidRequest for a key that is none.
    """
    if pid.startswith(_BY_KEY):
        return job_id_from(owned.workspace, owned.id, checked_key(pid.removeprefix(_BY_KEY)))
    if not is_job_id(pid):
        raise NotFound(f"there is no process {pid}")
    return pid
