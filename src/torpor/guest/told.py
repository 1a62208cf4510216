"""What a guest tells of its commands, read with distrust: whatever makes no sense is an OutcomeUnknown."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from pydantic import ConfigDict, Field

from torpor.errors import OutcomeUnknown
from torpor.guest.answers import lines_of, read
from torpor.guest.calls import Call
from torpor.guest.refusals import clean
from torpor.model.ids import is_job_id
from torpor.wire.frames import Frame, Kind
from torpor.wire.host import ExecOutcome, Job
from torpor_guest import protocol

_SIGNAL = re.compile(r"SIG[A-Z0-9]{1,12}")
# What a guest calls its commands that have no job's id.
_OWN_ID = re.compile(r"exec-[0-9]{1,15}")
_MOST_CODE = 255
_MOST_JOBS = 10_000
# A command, as it is shown.
_MAX_COMMAND = 500
# Of what is counted, bytes or milliseconds.
_MOST = 2**53
_MOST_PID = 2**31
# The last moment that a date can be, in seconds since 1970, and a day before it for other time zones.
_LAST_S = 253_402_300_799 - 86_400
_KINDS = {protocol.OUTPUT: Kind.STDOUT, protocol.ERRORS: Kind.STDERR}


class _Ended(ExecOutcome):
    """How a command ended, and how much it had written by then."""

    model_config = ConfigDict(strict=True)
    stdout_bytes: int = Field(ge=0, le=_MOST)
    stderr_bytes: int = Field(ge=0, le=_MOST)


async def frames_of(call: Call, stdout_from: int, stderr_from: int) -> AsyncGenerator[Frame, None]:
    """Yield a command's frames, the last an EXIT, which comes only after every byte from these offsets on."""
    reached = {Kind.STDOUT: stdout_from, Kind.STDERR: stderr_from}
    while (item := await call.receive()) is not None:
        kind = _KINDS[item[0]]
        reached[kind] += len(item[1])
        yield Frame(kind, item[1])
    ended = read(_Ended, await call.result())
    if reached != {Kind.STDOUT: ended.stdout_bytes, Kind.STDERR: ended.stderr_bytes}:
        raise OutcomeUnknown("the guest's agent sent another count of bytes than it says that the command wrote")
    outcome = _checked(ExecOutcome.model_validate(ended.model_dump()))
    yield Frame(Kind.EXIT, outcome.model_dump_json().encode())


def job_of(value: dict[str, Any] | bytes, wanted: str | None = None) -> Job:
    """Return what a guest tells of a job, which has to be the one that was asked for."""
    job = read(Job, value)
    if not (is_job_id(job.id) or _OWN_ID.fullmatch(job.id)) or wanted not in (None, job.id):
        raise OutcomeUnknown("the guest's agent told of another command than it was asked about")
    counts = (job.stdout_start, job.stdout_bytes), (job.stderr_start, job.stderr_bytes)
    counted = all(0 <= start <= written <= _MOST for start, written in counts)
    if not (counted and 0 <= job.started_at <= _LAST_S and (job.pid is None or 0 < job.pid < _MOST_PID)):
        raise OutcomeUnknown("the guest's agent told of a command that cannot be")
    if job.outcome is not None:
        _checked(job.outcome)
    job.command = clean(" ".join(job.command[:_MAX_COMMAND].split()))
    job.user = None if job.user is None else clean(job.user)
    return job


async def jobs_of(call: Call) -> list[Job]:
    """Return all of which a guest tells."""
    jobs: list[Job] = []
    async with aclosing(lines_of(call)) as lines:
        async for line in lines:
            if len(jobs) >= _MOST_JOBS:
                raise OutcomeUnknown(f"the guest's agent told of more than {_MOST_JOBS} commands")
            jobs.append(job_of(line))
    return jobs


def _checked(outcome: ExecOutcome) -> ExecOutcome:
    named = outcome.signal is None or _SIGNAL.fullmatch(outcome.signal) is not None
    if not (0 <= outcome.exit_code <= _MOST_CODE and 0 <= outcome.duration_ms <= _MOST and named):
        raise OutcomeUnknown("the guest's agent told of an end that no command can have")
    return outcome
