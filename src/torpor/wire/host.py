"""The interface between the control plane and a host agent (`/host/v1`), version 1.

| request | answer |
|---|---|
| `POST /host/v1/incarnations` Restore | 201 Incarnation; on error nothing is left on the host |
| `GET /host/v1/incarnations` | 200 IncarnationList: what lives or sleeps on this host now |
| `DELETE /host/v1/incarnations/{id}` | 200 Closed, also if there is none: only its snapshots are left on the host |
| `PUT .../{id}/deadline` Deadline | 204: when its machine ends even if no host agent lives to end it |
| `POST .../{id}/pause`, `.../{id}/resume` | 204, also if it holds already |
| `POST .../{id}/hibernate` Freeze | 200 Frozen; if it sleeps already, that snapshot; on error it is as before |
| `POST .../{id}/wake` | 200 Incarnation, also if it is awake; on error it sleeps as before |
| `POST .../{id}/snapshots` Freeze | 201 Frozen; on error nothing is left; the sandbox runs on, or stays paused |
| `POST .../{id}/rollback` Rollback | 200 Incarnation, also if it is not here (any more); on error it is as before |
| `POST .../{id}/exec` ExecOrder | 200 `application/vnd.torpor.frames`, see `wire/frames.py` |
| `POST .../{id}/jobs` JobOrder | 201 Job: it runs, and nobody has to listen; also if it was started before |
| `GET .../{id}/jobs` | 200 JobList: what runs in the guest, and what has ended and is remembered |
| `GET .../{id}/jobs/{job}` | 200 Job |
| `GET .../{id}/jobs/{job}/output?stdout_from=&stderr_from=` | 200 frames, as exec's; hanging up leaves it alone |
| `POST .../{id}/jobs/{job}/stdin?close=` raw bytes | 200 Fed |
| `POST .../{id}/jobs/{job}/signal` Signal | 204 |
| `GET .../{id}/fs?path=&user=` | 200 raw bytes |
| `PUT .../{id}/fs?path=&mode=&user=&append=` raw bytes | 200 public.Written |
| `DELETE .../{id}/fs?path=&recursive=` | 204 |
| `GET .../{id}/fs/stat?path=` | 200 public.FileEntry |
| `GET .../{id}/fs/dir?path=` | 200 public.DirListing |
| `POST .../{id}/fs/dir?path=&mode=&user=` | 204; parents are made; an existing folder is success |
| `POST .../{id}/fs/rename` public.Rename | 204 |
| `GET .../{id}/fs/walk?path=` | 200 `application/x-ndjson`, one public.FileEntry a line, parents before children |
| `GET .../{id}/logs` | 200 text/plain: the machine's console, also of a machine that has died or sleeps |
| `GET /host/v1/snapshots` | 200 FrozenList: every snapshot on this host |
| `DELETE /host/v1/snapshots/{id}` | 204; 404 unknown; what came from it goes on |
| `POST /host/v1/snapshots/{id}/verify` | 200 public.Verified: every byte is as it was written; else SnapshotCorrupt |
| `GET /host/v1/templates` | 200 public.TemplateList |
| `DELETE /host/v1/templates/{name}` | 204; 404 unknown |

Errors are `wire.errors.ErrorBody`. A sandbox that is not here is `NotFound`; one whose machine has died is
`SandboxLost`. Exec and files of one that sleeps, or is being frozen to sleep, or stands still in a pause, are `Busy`:
nothing happened. A command or a transfer that is under way when its sandbox goes to sleep is not answered before the
sandbox is awake again, and then with the truth.

A machine outlives its host agent. The next one takes over those that live and ends those that are nobody's; a job of
such a machine is reached by its id as before, and what it wrote meanwhile is there.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

HOST_API_VERSION = "v1"
SnapshotKind = Literal["checkpoint", "automatic", "hibernation", "fork"]


class Restore(BaseModel):
    """Bring a snapshot to life as the new sandbox `id`: a template's, a published one, or what a sandbox sleeps in.

    Exactly one of the three is given. `env` is added to what every exec of it starts from. `deadline`: see Deadline.
    """

    id: str
    template: str | None = None
    snapshot: str | None = None
    sleeper: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    deadline: float | None = None


class Deadline(BaseModel):
    """When a sandbox's machine ends at the latest, in seconds since 1970 (None: never).

    The host agent ends nothing by it: its caller does. It is for the time when neither lives. It is kept while the
    sandbox sleeps.
    """

    deadline: float | None


class Usage(BaseModel):
    """What a sandbox has used so far: the fields of `model.usage.Reading`."""

    cpu_seconds: float = 0.0
    resident_byte_seconds: float = 0.0
    resident_bytes: int = 0
    disk_bytes: int = 0


class Closed(BaseModel):
    """What a sandbox had used when it was ended; None where there was none."""

    usage: Usage | None = None


class Incarnation(BaseModel):
    """One sandbox on this host.

    `asleep`: it is hibernated, and has no process (`pid` None). `alive` is False once its machine has died; `reason`
    then says why. With a reason and `alive` its machine lives and is out of reach: calls raise Unavailable until it is
    reached, or deleted. `base` is the snapshot it came from or was last frozen into, None where that is its template's.
    `adopted`: its machine was taken over from an earlier host agent.
    """

    id: str
    template: str
    cpu: int
    memory_mb: int
    disk_gb: int
    boot_ms: int
    pid: int | None = None
    status: Literal["running", "paused", "asleep"] = "running"
    alive: bool = True
    reason: str | None = None
    base: str | None = None
    usage: Usage = Field(default_factory=Usage)
    adopted: bool = False


class Freeze(BaseModel):
    """Freeze a sandbox into the new snapshot `id`. `kind` is one of `model.snapshot.Kind`."""

    id: str
    kind: SnapshotKind
    name: str | None = None


class Rollback(BaseModel):
    """Let a sandbox be again as it was in a snapshot, under its own identity."""

    snapshot: str


class Frozen(BaseModel):
    """A snapshot on this host: the fields of `model.snapshot.Snapshot` and its `Cost`.

    `usage`: what its sandbox had used by the end of the freeze; None where the snapshot is only listed.
    """

    id: str
    kind: SnapshotKind
    sandbox: str
    created_at: datetime
    template: str
    cpu: int
    memory_mb: int
    disk_gb: int
    accelerator: str
    parent: str | None = None
    name: str | None = None
    size_bytes: int = 0
    pause_ms: float = 0.0
    took_ms: float = 0.0
    dirty_bytes: int = 0
    written_bytes: int = 0
    usage: Usage | None = None


class FrozenList(BaseModel):
    """The snapshots on a host. `unreadable`: the ids of those that are there, and whose manifest cannot be read."""

    items: list[Frozen]
    unreadable: list[str] = Field(default_factory=list)


class IncarnationList(BaseModel):
    """What lives or sleeps on a host."""

    items: list[Incarnation]


class ExecOrder(BaseModel):
    """One command. `argv` is what runs; a shell command has been made into the guest shell's argv by the caller.

    `timeout_s` None means no bound. `stdin` is base64 of the bytes, None is end-of-file at once.

    With `job` the command is the job of that id: it is started, or if that was done before by the same order, found
    again; it outlives who listens, and its output is told from `stdout_from` and `stderr_from` on (offsets in bytes).
    Without, nobody can find it again, and it is killed when the listener hangs up.
    """

    job: str | None = None
    stdout_from: int = Field(default=0, ge=0)
    stderr_from: int = Field(default=0, ge=0)
    argv: list[str]
    timeout_s: float | None = None
    cwd: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    user: str | None = None
    stdin: str | None = None


class ExecOutcome(BaseModel):
    """How a command ended: the payload of an EXIT frame. `timed_out`: it was killed for outlasting its timeout."""

    exit_code: int
    signal: str | None = None
    oom_killed: bool = False
    timed_out: bool = False
    duration_ms: int


class JobOrder(ExecOrder):
    """A command that runs on its own. `job` is given. With `open_stdin` its input stays open for what is sent later."""

    open_stdin: bool = False


class Job(BaseModel):
    """A command in a guest, by its id.

    `command`: what was ordered, cut where it is long. `waited_for`: it was an exec, whose caller may come back for it.
    `started_at` by the guest's clock, in seconds since 1970. `stdout_bytes` and `stderr_bytes`: how much it has
    written; of that, what is before `stdout_start` and `stderr_start` is not kept any more. `outcome` is None while it
    runs.
    """

    id: str
    command: str
    user: str | None = None
    pid: int | None = None
    waited_for: bool = False
    started_at: float
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    stdout_start: int = 0
    stderr_start: int = 0
    outcome: ExecOutcome | None = None


class JobList(BaseModel):
    """The commands that a guest runs or remembers, oldest first."""

    items: list[Job]


class Fed(BaseModel):
    """How many bytes a command's input took."""

    bytes: int


class Signal(BaseModel):
    """A signal for a command, by its name, such as SIGINT: for its process group, or SIGKILL for all its processes."""

    signal: str = "SIGKILL"
