"""The JSON of commands that have an id: `/v1/sandboxes/{id}/processes`."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from torpor.wire.public import ExecCommand, Strict

# A command's input that is sent later, in one request; the next one takes the next part.
MAX_INPUT_BYTES = 16 * 1024 * 1024


class StartProcess(ExecCommand):
    """`POST .../processes`: a command that runs on its own. With `open_stdin` its input stays open for later."""

    open_stdin: bool = False


class SendSignal(Strict):
    """`POST .../processes/{pid}/signal`: to the command's process group, or SIGKILL to all its processes."""

    signal: str = Field(default="SIGKILL", pattern=r"^SIG[A-Z0-9]{1,12}$")


class ProcessView(BaseModel):
    """A command in a sandbox that has an id: it outlives who started it, a hibernation and a restart of the server.

    `state`: `running` or `ended`. `kind`: `exec` (its caller waits for it) or `process`. `stdout_bytes` and
    `stderr_bytes`: how much it has written; what is before `stdout_start` and `stderr_start` is not kept any more. What
    is known of its end is null while it runs; `timed_out`: it was killed for outlasting its timeout.
    """

    id: str
    sandbox_id: str
    command: str
    kind: str
    state: str
    user: str | None = None
    pid: int | None = None
    started_at: datetime
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    stdout_start: int = 0
    stderr_start: int = 0
    exit_code: int | None = None
    signal: str | None = None
    oom_killed: bool | None = None
    timed_out: bool | None = None
    duration_ms: int | None = None


class ProcessList(BaseModel):
    """`GET .../processes`: what runs, and what has ended and is remembered, oldest first."""

    items: list[ProcessView]


class Fed(BaseModel):
    """`POST .../processes/{pid}/stdin`: how many bytes the command's input took."""

    bytes: int
