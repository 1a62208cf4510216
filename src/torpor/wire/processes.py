"""The JSON of commands that have an id: `/v1/sandboxes/{id}/processes`."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from torpor.wire.host import MAX_TERMINAL_CELLS
from torpor.wire.public import MAX_TTL_SECONDS, ExecCommand, Strict

# A command's input that is sent later, in one request; the next one takes the next part.
MAX_INPUT_BYTES = 16 * 1024 * 1024


class TerminalSize(Strict):
    """A terminal's size in characters; `POST .../processes/{pid}/resize`: the one it is to have from now on."""

    rows: int = Field(default=24, ge=1, le=MAX_TERMINAL_CELLS)
    cols: int = Field(default=80, ge=1, le=MAX_TERMINAL_CELLS)


class StartProcess(ExecCommand):
    """`POST .../processes`: a command that runs on its own. With `open_stdin` its input stays open for later.

    With `terminal` it has a terminal of that size, which is its stdin, stdout and stderr; without `cmd` it is the
    user's login shell then. `hangup_seconds`: once nobody has listened to it for so long (while its sandbox is awake),
    its terminal is hung up, or without one it is killed; null: it needs nobody.
    """

    cmd: str | list[str] = ""
    open_stdin: bool = False
    terminal: TerminalSize | None = None
    hangup_seconds: float | None = Field(default=None, gt=0, le=MAX_TTL_SECONDS, allow_inf_nan=False)


class SendSignal(Strict):
    """`POST .../processes/{pid}/signal`: to the command's process group, or SIGKILL to all its processes."""

    signal: str = Field(default="SIGKILL", pattern=r"^SIG[A-Z0-9]{1,12}$")


class ProcessView(BaseModel):
    """A command in a sandbox that has an id: it outlives who started it, a hibernation and a restart of the server.

    `state`: `running` or `ended`. `kind`: `exec` (its caller waits for it), `repl` (a code context) or `process`.
    `stdout_bytes` and `stderr_bytes`: how much it has written; what is before `stdout_start` and `stderr_start` is not
    kept any more. What is known of its end is null while it runs; `timed_out`: it was killed for outlasting its
    timeout. `terminal`: the size of its terminal, null where it has none.
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
    terminal: TerminalSize | None = None
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
