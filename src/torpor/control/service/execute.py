"""Exec: one command in a sandbox, as frames while it runs or as one answer when it has ended."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from torpor.control.service.awake import reached
from torpor.control.service.claims import checked_key
from torpor.control.service.files import absolute
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned
from torpor.errors import ExecTimeout, InvalidRequest, TorporError
from torpor.model.ids import JobId, job_id_from
from torpor.model.steps import SHELL
from torpor.wire import host
from torpor.wire.frames import Frame, Kind
from torpor.wire.public import MAX_COLLECTED_BYTES, MAX_STDIN_BYTES, ExecAnswer, ExecCommand

# So much of a command goes into an event.
_TOLD_CHARACTERS = 200


def order_for(command: ExecCommand, job: JobId | None = None) -> host.ExecOrder:
    """Return a command as the host takes it; with `job` it is that one. Raises InvalidRequest if it makes no sense."""
    return host.ExecOrder(
        job=job,
        stdout_from=command.stdout_from if job is not None else 0,
        stderr_from=command.stderr_from if job is not None else 0,
        argv=_argv(command.cmd),
        timeout_s=command.timeout_seconds,
        cwd=None if command.cwd is None else absolute(command.cwd, "cwd"),
        env=command.env,
        user=command.user,
        stdin=_stdin(command),
    )


def job_for(owned: Owned, key: str | None) -> JobId | None:
    """Return the id of the command that belongs to an idempotency key, None without one. Raises as `checked_key`."""
    return None if key is None else job_id_from(owned.workspace, owned.id, checked_key(key))


async def has_job(plane: Plane, owned: Owned, job: JobId) -> bool:
    """Tell whether a guest is known to have a command. Wakes nothing, and does not fail: False: not known."""
    try:
        await plane.host.job(owned.id, job)
    except TorporError:
        return False
    return True


def _argv(cmd: str | list[str]) -> list[str]:
    argv = [*SHELL, cmd] if isinstance(cmd, str) else cmd
    if not argv or not argv[0] or (isinstance(cmd, str) and not cmd.strip()):
        raise InvalidRequest("cmd is empty; it has to name a command")
    if any("\0" in word for word in argv):
        raise InvalidRequest("cmd has a NUL character in it, which no command line can carry")
    return argv


def _stdin(command: ExecCommand) -> str | None:
    if command.stdin is not None and command.stdin_base64 is not None:
        raise InvalidRequest("stdin and stdin_base64 cannot be given together")
    if command.stdin_base64 is not None:
        try:
            data = base64.b64decode(command.stdin_base64, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidRequest("stdin_base64 is not base64") from error
    elif command.stdin is not None:
        data = command.stdin.encode()
    else:
        return None
    if len(data) > MAX_STDIN_BYTES:
        raise InvalidRequest(
            f"stdin is {len(data)} bytes, and at most {MAX_STDIN_BYTES} fit into a request",
            hint="write it to a file first",
        )
    return base64.b64encode(data).decode()


@asynccontextmanager
async def execute(plane: Plane, owned: Owned, order: host.ExecOrder) -> AsyncIterator[AsyncIterator[Frame]]:
    """Run a command while the block lasts and yield its frames, EXIT last.

    Leaving the block kills the command, unless it is a job: that goes on, and the same order finds it again. A sandbox
    that sleeps is woken first, and one that falls asleep meanwhile lets the command go on when it is awake again.
    Raises as `reached` does, and what the host raises.
    """
    told = Told(order.job, spoken(order), is_exec=True)
    async with reached(plane, owned, lambda: plane.host.exec(owned.id, order)) as frames:
        yield noticing_end(plane, owned, told, frames)


@dataclass(frozen=True, slots=True)
class Told:
    """What is told of a command at its end: its `job`, if it has an id, and its text."""

    job: str | None
    command: str
    is_exec: bool


def spoken(order: host.ExecOrder) -> str:
    """Return a command as events tell it: what the shell was given, or the words, cut where they are long."""
    words = order.argv[2:] if tuple(order.argv[:2]) == SHELL else order.argv
    return " ".join(words)[:_TOLD_CHARACTERS]


async def noticing_end(plane: Plane, owned: Owned, told: Told, frames: AsyncIterator[Frame]) -> AsyncIterator[Frame]:
    """Pass a command's frames on, and note its end, once however many listen to it."""
    async for frame in frames:
        if frame.kind is Kind.EXIT and (told.job is None or plane.once.is_first("end", owned.id, told.job)):
            outcome = host.ExecOutcome.model_validate_json(frame.payload)
            plane.noter.note(
                "exec",
                owned,
                command=told.command[:_TOLD_CHARACTERS],
                kind="exec" if told.is_exec else "process",
                exit_code=outcome.exit_code,
                signal=outcome.signal,
                timed_out=outcome.timed_out,
                duration_ms=outcome.duration_ms,
            )
            if told.is_exec:
                plane.pace.command_ended(owned.id)
        yield frame


async def collect(plane: Plane, owned: Owned, order: host.ExecOrder) -> ExecAnswer:
    """Run a command and return all it wrote, each stream up to MAX_COLLECTED_BYTES.

    Raises ExecTimeout, with what it wrote, if it outlasted its timeout; else as `execute`.
    """
    held = {Kind.STDOUT: bytearray(), Kind.STDERR: bytearray()}
    truncated = False
    async with execute(plane, owned, order) as frames:
        async for kind, payload in frames:
            if kind is Kind.EXIT:
                outcome = host.ExecOutcome.model_validate_json(payload)
                continue
            room = MAX_COLLECTED_BYTES - len(held[kind])
            held[kind] += payload[:room]
            truncated = truncated or len(payload) > room
    stdout, stderr = (bytes(stream).decode(errors="replace") for stream in held.values())
    if outcome.timed_out:
        raise timed_out(order.timeout_s, stdout, stderr)
    return ExecAnswer(
        stdout=stdout,
        stderr=stderr,
        exit_code=outcome.exit_code,
        duration_ms=outcome.duration_ms,
        truncated=truncated,
        signal=outcome.signal,
        oom_killed=outcome.oom_killed,
    )


def timed_out(timeout_s: float | None, stdout: str = "", stderr: str = "") -> ExecTimeout:
    """Return the error of a command that was killed for outlasting its timeout (None: it is not known here)."""
    if timeout_s is None:
        return ExecTimeout("command timeout: it was killed for outlasting it", stdout=stdout, stderr=stderr)
    seconds = f"{timeout_s:.3f}".rstrip("0").rstrip(".")
    return ExecTimeout(f"command timeout after {seconds} s", stdout=stdout, stderr=stderr)
