"""The interpreter of a code context as the control plane sees it: its program, and what it says.

What it says is read as from anybody else in a guest: in bounds, and nothing is taken for granted. The protocol is told
in `torpor_kernel/supervisor.py`, whose source is only sent.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from torpor.errors import Failed, InterpreterLost
from torpor.model.ids import is_context_id
from torpor.wire import host
from torpor.wire.frames import Frame, Kind
from torpor.wire.repl import MAX_RESULT_BYTES

# Of the counts that it tells.
_MOST = 2**53
# In the order in which they import each other.
_MODULES = ("display", "interpreter", "child", "supervisor")
# A line of more is none of the interpreter's.
_MOST_LINE = MAX_RESULT_BYTES + 1024 * 1024
_MOST_TOLD = 2000


class Said(BaseModel):
    """One message: the fields of all kinds, of which each has its own."""

    model_config = ConfigDict(strict=True, extra="ignore", hide_input_in_errors=True)

    kind: Literal["ready", "taken", "again", "full", "stdout", "stderr", "result", "done"]
    cell: str | None = None
    at: int = Field(default=0, ge=0, le=_MOST)
    text: str = ""
    data: dict[str, str] = Field(default_factory=dict)
    number: int = Field(default=0, ge=0, le=_MOST)
    exit: int = Field(default=1, ge=0, le=255)
    error: str | None = None
    error_name: str | None = None
    truncated: bool = False
    duration_ms: int = Field(default=0, ge=0, le=_MOST)
    timed_out: bool = False
    ended: bool = False


def argv() -> list[str]:
    """Return the command that runs an interpreter."""
    return ["python3", "-c", _source("boot")]


@cache
def program() -> str:
    """Return the first input of that command, in base64."""
    modules = json.dumps([[name, _source(name)] for name in _MODULES]).encode()
    return base64.b64encode(b"%016d" % len(modules) + modules).decode()


def order(cell: str, code: str, timeout_s: float | None) -> bytes:
    """Return the order for a cell. An order before it that was cut off ends with the line that it begins with."""
    return b"\n" + json.dumps({"cell": cell, "code": code, "timeout_s": timeout_s}).encode() + b"\n"


def is_at_rest(job: host.Job) -> bool:
    """Tell whether a job is an interpreter that waits for its next cell."""
    return is_context_id(job.id) and job.stderr_bytes % 2 == 0


async def messages(frames: AsyncIterator[Frame], begin: str | None = None) -> AsyncIterator[Said]:
    """Yield what an interpreter says.

    Unless `begin` is None, what comes before the first message about the cell `begin` is passed over, whatever it is:
    it may begin in the middle of a line.

    Raises InterpreterLost when the interpreter has ended, and Failed if what comes is nothing that it says.
    """
    held, complaint = bytearray(), bytearray()
    async for frame in frames:
        if frame.kind is Kind.EXIT:
            raise lost(host.ExecOutcome.model_validate_json(frame.payload), complaint.decode(errors="replace"))
        if frame.kind is not Kind.STDOUT:
            complaint = (complaint + frame.payload)[-_MOST_TOLD:]
            continue
        searched = len(held)
        held += frame.payload
        while (end := held.find(b"\n", searched)) >= 0:
            line, searched = bytes(held[:end]), 0
            del held[: end + 1]
            said = _said(line)
            if begin is not None and said is not None and said.cell == begin:
                begin = None
            if begin is not None:
                continue
            if said is None:
                raise broken()
            yield said
        if len(held) > _MOST_LINE:
            if begin is None:
                raise broken()
            held.clear()


def lost(outcome: host.ExecOutcome, complaint: str = "") -> InterpreterLost:
    """Return the error of an interpreter that has ended."""
    hint = "make another code context; variables of this one are gone, files are not"
    if outcome.oom_killed:
        return InterpreterLost("the interpreter was killed: the sandbox ran out of memory", hint=hint)
    how = f"was ended by {outcome.signal}" if outcome.signal else f"has ended with code {outcome.exit_code}"
    said = complaint.strip(". \n").splitlines()
    return InterpreterLost(f"the interpreter {how}{': ' + said[-1] if said else ''}", hint=hint)


def broken() -> Failed:
    """Return the error of an interpreter that does not say what one says."""
    return Failed(
        "what came from the interpreter is nothing that one says; something in the sandbox has written there",
        hint="make another code context",
    )


def _said(line: bytes) -> Said | None:
    try:
        return Said.model_validate_json(line)
    except ValidationError:
        return None


@cache
def _source(module: str) -> str:
    return files("torpor_kernel").joinpath(f"{module}.py").read_text(encoding="utf-8")
