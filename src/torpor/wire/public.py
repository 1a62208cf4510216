"""The JSON of the public HTTP API (`/v1`), shared by the control plane, the SDK and the CLI."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationInfo, computed_field, field_validator

from torpor.wire.reach import AllowList, OptionalReachWish, Secrets
from torpor.wire.volumes import MAX_VOLUMES, AttachedView, VolumeWish

API_VERSION = "v1"

# stdin travels inside the request's JSON; larger input belongs in a file.
MAX_STDIN_BYTES = 16 * 1024 * 1024
# Each of stdout and stderr in a collected (not streamed) answer; what is beyond is dropped and `truncated` says so.
MAX_COLLECTED_BYTES = 32 * 1024 * 1024
MAX_TTL_SECONDS = 30 * 24 * 3600
# Where a create says nothing of the end of its sandbox.
DEFAULT_TTL_SECONDS = 3600

MAX_CHECKPOINTS_KEPT = 100

MAX_METADATA = 64
# Children of one fork.
MAX_CHILDREN = 64

MetadataKey = Annotated[str, StringConstraints(min_length=1, max_length=128)]
MetadataValue = Annotated[str, StringConstraints(max_length=4096)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=MAX_METADATA)]
EnvName = Annotated[str, StringConstraints(pattern=r"^[^=\x00]+$", max_length=1024)]
EnvValue = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=128 * 1024)]
Env = Annotated[dict[EnvName, EnvValue], Field(max_length=1024)]


class Strict(BaseModel):
    """A request: wrong types are refused, not converted; fields not known are ignored, as older clients send some.

    What was sent is not in the text of its errors: there may be secrets in it.
    """

    model_config = ConfigDict(strict=True, extra="ignore", hide_input_in_errors=True)


class CreateSandbox(Strict):
    """`POST /v1/sandboxes`. `ttl_seconds` counts from creation; `persistent` means no end and excludes a ttl.

    `idle_timeout_seconds`: after so long with nothing in flight `on_idle` is done to it (null: never). `on_crash`: what
    becomes of it if its machine dies: it is `failed`, or put back to its last snapshot. A checkpoint is taken every
    `checkpoint_every_seconds` of running and after every `checkpoint_every_execs` commands (null: not), and of these
    the newest `checkpoint_keep` are kept.

    `secrets` are in the environment of all that is started in it, and nowhere else: of them only the names are shown.
    Null keeps those that a snapshot holds; anything else takes the place of all of them. `network`: what it may reach;
    null is what the snapshot's sandbox might, of a template the internet, and nothing on a host that has no network.
    `volumes` are attached for its whole life; of those that a snapshot's sandbox had, it gets copies.
    """

    template: str = Field(default="base", min_length=1, max_length=63)
    ttl_seconds: int | None = Field(default=None, ge=1, le=MAX_TTL_SECONDS)
    persistent: bool = False
    name: str | None = Field(default=None, min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    metadata: Metadata = Field(default_factory=dict)
    env: Env = Field(default_factory=dict, repr=False)
    secrets: Secrets | None = None
    cpu: int | None = Field(default=None, ge=1)
    memory_mb: int | None = Field(default=None, ge=1)
    disk_gb: int | None = Field(default=None, ge=1)
    network: OptionalReachWish = None
    idle_timeout_seconds: int | None = Field(default=None, ge=1, le=MAX_TTL_SECONDS)
    on_idle: Literal["hibernate", "delete"] = "hibernate"
    on_crash: Literal["fail", "restore"] = "fail"
    checkpoint_every_seconds: int | None = Field(default=None, ge=1, le=MAX_TTL_SECONDS)
    checkpoint_every_execs: int | None = Field(default=None, ge=1, le=1_000_000)
    checkpoint_keep: int = Field(default=3, ge=1, le=MAX_CHECKPOINTS_KEPT)
    volumes: list[VolumeWish] | None = Field(default=None, max_length=MAX_VOLUMES)

    @field_validator("secrets")
    @classmethod
    def _names_are_given_once(cls, value: Secrets | None, info: ValidationInfo) -> Secrets | None:
        if both := sorted(info.data.get("env", {}).keys() & (value or {}).keys()):
            raise ValueError(f"secrets and env both have {both[0]}, and a command can have only one of them")
        return value


class CreateFromSnapshot(CreateSandbox):
    """`POST /v1/sandboxes` in full: with `from_snapshot` a snapshot comes to life, and `template` is not read."""

    from_snapshot: str | None = Field(default=None, min_length=1, max_length=64)


class TakeSnapshot(Strict):
    """`POST .../snapshots`. `name` is for people, and need not be unique."""

    name: str | None = Field(default=None, min_length=1, max_length=128)

    @field_validator("name")
    @classmethod
    def _is_printable(cls, value: str | None) -> str | None:
        if value is not None and not value.isprintable():
            raise ValueError("name has to consist of printable characters, without line breaks")
        return value


class SnapshotView(BaseModel):
    """A snapshot as clients see it: a complete checkpoint of one sandbox, in memory and on disk.

    `kind`: `checkpoint` (asked for; kept until deleted), `automatic` (the newest few are kept), `hibernation` or
    `fork` (of each the newest is kept); none but the first outlives its sandbox. `size_bytes`: what it takes up on disk
    beyond what it shares with its `parent_id`. `pause_ms`: how long the guest stood still for it; `took_ms`: until it
    was durable but for its name. `dirty_bytes`: memory the guest had written; `written_bytes`: how much of that was
    new. `network` and `secret_names`: what the sandbox might reach, and which secrets it held, when it was taken; the
    values are in the snapshot's memory image.
    """

    id: str
    sandbox_id: str
    kind: str
    name: str | None = None
    template: str
    created_at: datetime
    cpu: int
    memory_mb: int
    disk_gb: int
    size_bytes: int
    parent_id: str | None = None
    pause_ms: float = 0.0
    took_ms: float = 0.0
    dirty_bytes: int = 0
    written_bytes: int = 0
    network: str | AllowList = "none"
    secret_names: list[str] = Field(default_factory=list)


class SnapshotPage(BaseModel):
    """One page of snapshots, newest first; `next_cursor` is None on the last page. Some clients read `snapshots`."""

    items: list[SnapshotView]
    next_cursor: str | None = None

    @computed_field  # type: ignore[prop-decorator]  # mypy has no words for it
    @property
    def snapshots(self) -> list[SnapshotView]:
        """The same as `items`."""
        return self.items


class Verified(BaseModel):
    """`POST /v1/snapshots/{id}/verify`: every byte is as it was written. `took_ms` in milliseconds."""

    id: str
    checked_bytes: int
    took_ms: float


class ForkSandbox(Strict):
    """`POST .../fork`: `count` children (one if it is not given), with the parent's metadata and then `metadata`.

    `secrets` take the place of the parent's in every child, before anything runs in it; null keeps the parent's.
    `network`: what the children may reach, null for what the parent may.
    """

    count: int | None = Field(default=None, ge=1, le=MAX_CHILDREN)
    metadata: Metadata = Field(default_factory=dict)
    ttl_seconds: int | None = Field(default=None, ge=1, le=MAX_TTL_SECONDS)
    persistent: bool = False
    secrets: Secrets | None = None
    network: OptionalReachWish = None


class RollBack(Strict):
    """`POST .../rollback`: the sandbox becomes again what it was in the snapshot, under its own id."""

    snapshot: str = Field(min_length=1, max_length=64)


class WakeUp(Strict):
    """`POST .../wake`: with `ttl_seconds` the sandbox ends that long from now; without it, it ends when it did."""

    ttl_seconds: int | None = Field(default=None, ge=1, le=MAX_TTL_SECONDS)


class Hibernate(Strict):
    """`POST .../hibernate`: with `if_unused` it is refused while a call is using the sandbox.

    Commands that were started and that nobody waits for are no such calls: they sleep with it.
    """

    if_unused: bool = False


class Status(BaseModel):
    """`POST .../hibernate` and `.../wake`: the state that was reached."""

    status: str
    snapshot_id: str | None = None


class SandboxView(BaseModel):
    """A sandbox as clients see it."""

    id: str
    name: str | None = None
    template: str
    status: str
    cpu: int
    memory_mb: int
    disk_gb: int
    network: str | AllowList = "none"
    guest_ip: str | None = None
    secret_names: list[str] = Field(default_factory=list)
    created_at: datetime
    expires_at: datetime | None = None
    ttl_seconds: int | None = None
    persistent: bool = False
    metadata: dict[str, str] = Field(default_factory=dict)
    from_snapshot: str | None = None
    parent_id: str | None = None
    last_snapshot_id: str | None = None
    boot_ms: int | None = None
    boot_mode: str = "restore"
    reason: str | None = None
    idle_timeout_seconds: int | None = None
    on_idle: str = "hibernate"
    on_crash: str = "fail"
    checkpoint_every_seconds: int | None = None
    checkpoint_every_execs: int | None = None
    checkpoint_keep: int = 3
    volumes: list[AttachedView] = Field(default_factory=list)


class SandboxPage(BaseModel):
    """One page of a listing, newest first; `next_cursor` is None on the last page."""

    items: list[SandboxView]
    next_cursor: str | None = None


class Forked(BaseModel):
    """`POST .../fork`: `sandbox` is the first of `children`; all began in the same instant, `at`."""

    sandbox: SandboxView
    children: list[SandboxView]
    parent_id: str
    snapshot_id: str | None
    at: datetime


class Lifecycle(BaseModel):
    """`GET .../lifecycle`: how long a sandbox lives. `idle_seconds`: its idle time (None: idleness changes nothing)."""

    ttl_seconds: int | None
    persistent: bool
    idle_seconds: int | None = None
    expires_at: datetime | None


class LifecycleChange(Strict):
    """`PATCH .../lifecycle`: a new ttl, counted from now, or `persistent`, which means no end; a new idle time.

    `idle_seconds` 0 means that idleness changes nothing any more.
    """

    ttl_seconds: int | None = Field(default=None, ge=1, le=MAX_TTL_SECONDS)
    persistent: bool | None = None
    idle_seconds: int | None = Field(default=None, ge=0, le=MAX_TTL_SECONDS)


class ExecCommand(Strict):
    """`POST .../exec` and `.../exec/stream`.

    `cmd`: a string is run by the guest's shell (`/bin/sh -c`), a list is run as it is. `timeout_seconds` bounds the
    command's own running time (None: no bound). `stdin` is text, `stdin_base64` bytes; without either the command reads
    end-of-file. `encoding`: how a stream's chunks are sent; "base64" keeps bytes exact, "text" is UTF-8 with characters
    never split and undecodable bytes replaced.

    With an `Idempotency-Key` the command is a process that outlives the connection: a request that is sent again with
    the same key and body goes on listening to the same command, from `stdout_from` and `stderr_from` on (in bytes).
    """

    cmd: str | list[str]
    timeout_seconds: float | None = Field(default=None, gt=0, le=MAX_TTL_SECONDS, allow_inf_nan=False)
    cwd: str | None = Field(default=None, max_length=4096)
    env: Env = Field(default_factory=dict)
    user: str | None = Field(default=None, min_length=1, max_length=64)
    stdin: str | None = None
    stdin_base64: str | None = None
    encoding: Literal["text", "base64"] = "text"
    stdout_from: int = Field(default=0, ge=0)
    stderr_from: int = Field(default=0, ge=0)

    @field_validator("cmd", "stdin")
    @classmethod
    def _is_text(cls, value: str | list[str] | None) -> str | list[str] | None:
        for word in [value] if isinstance(value, str) else value or []:
            try:
                word.encode()
            except UnicodeEncodeError as error:
                raise ValueError("half a surrogate pair is no character") from error
        return value


class ExecAnswer(BaseModel):
    """A finished command. `exit_code` is 128 + the signal's number where a signal ended it, and `signal` its name."""

    stdout: str
    stderr: str
    exit_code: int
    duration_ms: int
    truncated: bool = False
    signal: str | None = None
    oom_killed: bool = False


class StreamExit(BaseModel):
    """The `exit` event of an exec stream."""

    exit_code: int
    duration_ms: int
    signal: str | None = None
    oom_killed: bool = False


class FileEntry(BaseModel):
    """A file, folder or link in the guest. `size` in bytes, `mode`: permission bits, `mtime`: seconds since 1970."""

    name: str
    path: str
    is_dir: bool
    is_symlink: bool = False
    size: int
    mode: int
    mtime: float
    user: str
    group: str
    link_target: str | None = None


class DirListing(BaseModel):
    """`GET .../fs/dir`: the entries of one folder, by name."""

    entries: list[FileEntry]


class Written(BaseModel):
    """`PUT .../fs`: what was written."""

    path: str
    bytes: int


class Rename(Strict):
    """`POST .../fs/rename`: move `source` to `target`, replacing a file there. Absolute paths in one guest."""

    source: str = Field(min_length=1, max_length=4096)
    target: str = Field(min_length=1, max_length=4096)


class TemplateView(BaseModel):
    """A baked template: everybody's (`is_global`), or one `workspace`'s. `description` is for people."""

    name: str
    created_at: datetime
    fingerprint: str
    cpu: int
    memory_mb: int
    disk_gb: int
    accelerator: str
    size_bytes: int
    cold_boot_ms: int
    is_global: bool = True
    workspace: str | None = None
    description: str | None = None


class TemplateList(BaseModel):
    """`GET /v1/templates`."""

    items: list[TemplateView]


class Version(BaseModel):
    """`GET /version`."""

    version: str
    api: str = API_VERSION


class Health(BaseModel):
    """`GET /healthz`."""

    status: Literal["ok"] = "ok"
