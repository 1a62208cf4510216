"""The interface between the control plane and a host agent (`/host/v1`), version 1.

| request | answer |
|---|---|
| `GET /host/v1/capabilities` | 200 Capabilities: what this host can do for a sandbox |
| `POST /host/v1/incarnations` Restore | 201 Incarnation; on error nothing is left on the host |
| `GET /host/v1/incarnations` | 200 IncarnationList: what lives or sleeps on this host now |
| `DELETE /host/v1/incarnations/{id}` | 200 Closed, also if there is none: only its snapshots are left on the host |
| `GET .../{id}/network` | 200 NetworkState, also of one that sleeps |
| `PUT .../{id}/network` Network | 204: what it may reach from now on; of one that sleeps, once it is awake |
| `PUT .../{id}/deadline` Deadline | 204: when its machine ends even if no host agent lives to end it |
| `POST .../{id}/pause`, `.../{id}/resume` | 204, also if it holds already |
| `POST .../{id}/hibernate` Freeze | 200 Frozen; if it sleeps already, that snapshot; on error it is as before |
| `POST .../{id}/wake` Wake | 200 Incarnation, also if it is awake; on error it sleeps as before |
| `POST .../{id}/snapshots` Freeze | 201 Frozen; on error nothing is left; the sandbox runs on, or stays paused |
| `POST .../{id}/rollback` Rollback | 200 Incarnation, also if it is not here (any more); on error it is as before |
| `POST .../{id}/exec` ExecOrder | 200 `application/vnd.torpor.frames`, see `wire/frames.py` |
| `POST .../{id}/jobs` JobOrder | 201 Job: it runs, and nobody has to listen; also if it was started before |
| `GET .../{id}/jobs` | 200 JobList: what runs in the guest, and what has ended and is remembered |
| `GET .../{id}/jobs/{job}` | 200 Job |
| `GET .../{id}/jobs/{job}/output?stdout_from=&stderr_from=` | 200 frames, as exec's; hanging up leaves it alone |
| `POST .../{id}/jobs/{job}/stdin?close=` raw bytes, as they come | 200 Fed, once they have ended |
| `POST .../{id}/jobs/{job}/resize` TerminalSize | 204; Conflict if the terminal is not there any more |
| `POST .../{id}/jobs/{job}/signal` Signal | 204 |
| `GET .../{id}/fs?path=&user=` | 200 raw bytes |
| `PUT .../{id}/fs?path=&mode=&user=&append=` raw bytes | 200 public.Written |
| `DELETE .../{id}/fs?path=&recursive=` | 204 |
| `GET .../{id}/fs/stat?path=` | 200 public.FileEntry |
| `GET .../{id}/fs/dir?path=` | 200 public.DirListing |
| `POST .../{id}/fs/dir?path=&mode=&user=` | 204; parents are made; an existing folder is success |
| `POST .../{id}/fs/rename` public.Rename | 204 |
| `GET .../{id}/fs/walk?path=` | 200 `application/x-ndjson`, one public.FileEntry a line, parents before children |
| `GET .../{id}/ports` | 200 PortList: the TCP ports on which somebody in the guest listens |
| `POST .../{id}/ports/{port}` the bytes for a server | 200 the bytes from it: see `wire/duplex.py`; else PortClosed |
| `POST /host/v1/reservations` Reserve | 204; NoCapacity or OutOfSpace, and nothing is held |
| `GET /host/v1/capacity` | 200 capacity.Capacity |
| `GET .../{id}/logs` | 200 text/plain: the machine's console, also of a machine that has died or sleeps |
| `GET /host/v1/snapshots` | 200 FrozenList: every snapshot on this host |
| `DELETE /host/v1/snapshots/{id}` | 204; 404 unknown; what came from it goes on |
| `POST /host/v1/snapshots/{id}/verify` | 200 public.Verified: every byte is as it was written; else SnapshotCorrupt |
| `POST /host/v1/volumes` MakeVolume | 201 VolumeFile: an empty one; OutOfSpace, and nothing is left |
| `GET /host/v1/volumes` | 200 VolumeFiles |
| `DELETE /host/v1/volumes/{id}` | 204, also if there is none; Conflict if a sandbox here writes to it |
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

from pydantic import BaseModel, ConfigDict, Field

from torpor.model.volume import LEAST_MB, MOST_MB

HOST_API_VERSION = "v1"
# A terminal has at most so many rows, and so many columns.
MAX_TERMINAL_CELLS = 65535
SnapshotKind = Literal["checkpoint", "automatic", "hibernation", "fork"]


class Network(BaseModel):
    """What a sandbox may reach: the fields of `model.network.Egress`."""

    mode: Literal["internet", "none", "allow"]
    cidrs: list[str] = Field(default_factory=list)
    names: list[str] = Field(default_factory=list)


class Denied(BaseModel):
    """Packets of a sandbox that were not let through: how many, for which `reason`, and where to, if that is kept."""

    reason: str
    count: int
    destination: str | None = None


class NetworkState(BaseModel):
    """What a sandbox may reach, and what it could not. `guest_ip` is None where it has no network."""

    policy: Network
    guest_ip: str | None = None
    denied: list[Denied] = Field(default_factory=list)


class Capabilities(BaseModel):
    """What a host can do. `network`: whether sandboxes on it can reach anything; if not, `network_trouble` says why."""

    network: bool = False
    network_trouble: str | None = None


class Attached(BaseModel):
    """A volume in a sandbox: the fields of `model.volume.Attachment`."""

    volume: str
    name: str
    path: str
    size_mb: int = Field(ge=1)
    read_only: bool = False
    is_copy: bool = False


class MakeVolume(BaseModel):
    """Make the volume `id`, with an empty file system."""

    id: str
    size_mb: int = Field(ge=LEAST_MB, le=MOST_MB)


class VolumeFile(BaseModel):
    """A volume on this host: its size, and what it takes up on the disk, in bytes."""

    id: str
    size_bytes: int
    disk_bytes: int


class VolumeFiles(BaseModel):
    """The volumes on a host."""

    items: list[VolumeFile]


class Restore(BaseModel):
    """Bring a snapshot to life as the new sandbox `id`: a template's, a published one, or what a sandbox sleeps in.

    Exactly one of the three is given. `env` is added to what every exec of it starts from. `secrets` are, too, in place
    of all secrets that the snapshot holds (None: it keeps those); they take effect before any process of it runs.
    `network`: what it may reach from its first moment on (None: nothing). `deadline`: see Deadline. `volumes`: those
    that a sandbox of a template has, in the order of their bays; who reads one only gets a copy. Of what a snapshot's
    sandbox had, there are copies.
    """

    model_config = ConfigDict(hide_input_in_errors=True)  # users put secrets there

    id: str
    template: str | None = None
    snapshot: str | None = None
    sleeper: str | None = None
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    secrets: dict[str, str] | None = Field(default=None, repr=False)
    network: Network | None = None
    deadline: float | None = None
    volumes: list[Attached] = Field(default_factory=list, max_length=16)


class Wake(BaseModel):
    """Let a sandbox go on. `network`: what it may reach from then on (None: what it was told last)."""

    network: Network | None = None


class Reserve(BaseModel):
    """Hold room for machines that are about to be restored as the sandboxes `ids`: for all of them, or none.

    Each with `memory_mb` of memory and a disk of `disk_gb`; for `for_s` seconds, or until it is restored, or deleted.
    """

    ids: list[str] = Field(max_length=1024)
    memory_mb: int = Field(ge=1)
    disk_gb: int = Field(ge=1)
    for_s: float = Field(gt=0, le=7200)


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
    `adopted`: its machine was taken over from an earlier host agent. `network`: what it may reach now, or will once it
    is awake; `guest_ip` is its own address, None where it has no network.
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
    network: Network | None = None
    guest_ip: str | None = None


class Freeze(BaseModel):
    """Freeze a sandbox into the new snapshot `id`. `kind` is one of `model.snapshot.Kind`."""

    id: str
    kind: SnapshotKind
    name: str | None = None


class Rollback(BaseModel):
    """Let a sandbox be again as it was in a snapshot, under its own identity.

    `secrets` and `network` as in Restore; without `network` it may reach what it was told last. `volumes`: the ids of
    those that become again what they were in it; of others that its sandbox had, there are copies.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    snapshot: str
    secrets: dict[str, str] | None = Field(default=None, repr=False)
    network: Network | None = None
    volumes: list[str] = Field(default_factory=list)


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


class TerminalSize(BaseModel):
    """A terminal's size in characters."""

    rows: int = Field(default=24, ge=1, le=MAX_TERMINAL_CELLS)
    cols: int = Field(default=80, ge=1, le=MAX_TERMINAL_CELLS)


class ExecOrder(BaseModel):
    """One command. `argv` is what runs; a shell command has been made into the guest shell's argv by the caller.

    `timeout_s` None means no bound. `stdin` is base64 of the bytes, None is end-of-file at once.

    With `job` the command is the job of that id: it is started, or if that was done before by the same order, found
    again; it outlives who listens, and its output is told from `stdout_from` and `stderr_from` on (offsets in bytes).
    Without, nobody can find it again, and it is killed when the listener hangs up.

    With `terminal`, which only a job can have, a pseudo-terminal is its stdin, stdout, stderr and controlling terminal;
    all its output is stdout then, and without words in `argv` it is the user's login shell.
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
    terminal: TerminalSize | None = None


class ExecOutcome(BaseModel):
    """How a command ended: the payload of an EXIT frame. `timed_out`: it was killed for outlasting its timeout."""

    exit_code: int
    signal: str | None = None
    oom_killed: bool = False
    timed_out: bool = False
    duration_ms: int


class JobOrder(ExecOrder):
    """A command that runs on its own. `job` is given. With `open_stdin` its input stays open for what is sent later, as
    that of one with a terminal always does.

    `hangup_s`: once nobody has listened to it for so long, in seconds of the guest's waking life, its terminal is hung
    up; where it has none it is killed.
    """

    open_stdin: bool = False
    hangup_s: float | None = Field(default=None, gt=0)


class Job(BaseModel):
    """A command in a guest, by its id.

    `command`: what was ordered, cut where it is long. `waited_for`: it was an exec, whose caller may come back for it.
    `started_at` by the guest's clock, in seconds since 1970. `stdout_bytes` and `stderr_bytes`: how much it has
    written; of that, what is before `stdout_start` and `stderr_start` is not kept any more. `terminal`: what size its
    terminal has, None where it has none. `outcome` is None while it runs.
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
    terminal: TerminalSize | None = None
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


class Port(BaseModel):
    """A TCP port on which somebody in a guest listens, at `address`; by whom, as far as it is known."""

    port: int = Field(ge=1, le=65535)
    address: str
    pid: int | None = None
    process: str | None = None


class PortList(BaseModel):
    """Who listens in a guest, by number; at most 512 of them."""

    items: list[Port]
