"""The interface between the control plane and a host agent (`/host/v1`), version 1.

| request | answer |
|---|---|
| `POST /host/v1/incarnations` Restore | 201 Incarnation; on error nothing is left on the host |
| `GET /host/v1/incarnations` | 200 IncarnationList: what lives on this host now |
| `DELETE /host/v1/incarnations/{id}` | 204, also if there is none: after it nothing of the sandbox is on the host |
| `POST .../{id}/exec` ExecOrder | 200 `application/vnd.torpor.frames`, see `wire/frames.py` |
| `GET .../{id}/fs?path=&user=` | 200 raw bytes |
| `PUT .../{id}/fs?path=&mode=&user=&append=` raw bytes | 200 public.Written |
| `DELETE .../{id}/fs?path=&recursive=` | 204 |
| `GET .../{id}/fs/stat?path=` | 200 public.FileEntry |
| `GET .../{id}/fs/dir?path=` | 200 public.DirListing |
| `POST .../{id}/fs/dir?path=&mode=&user=` | 204; parents are made; an existing folder is success |
| `POST .../{id}/fs/rename` public.Rename | 204 |
| `GET .../{id}/fs/walk?path=` | 200 `application/x-ndjson`, one public.FileEntry a line, parents before children |
| `GET .../{id}/logs` | 200 text/plain: the machine's console, also of a machine that has died |
| `GET /host/v1/templates` | 200 public.TemplateList |
| `DELETE /host/v1/templates/{name}` | 204; 404 unknown |

Errors are `wire.errors.ErrorBody`. A sandbox that is not alive here is `NotFound`; one whose machine has died is
`SandboxLost`.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

HOST_API_VERSION = "v1"


class Restore(BaseModel):
    """Bring a template's snapshot to life as the sandbox `id`. `env` is what every exec of it starts from."""

    id: str
    template: str
    env: dict[str, str] = Field(default_factory=dict)


class Incarnation(BaseModel):
    """One sandbox alive on this host. `alive` is False once its machine has died; `reason` then says why."""

    id: str
    template: str
    cpu: int
    memory_mb: int
    disk_gb: int
    boot_ms: int
    pid: int
    alive: bool = True
    reason: str | None = None


class IncarnationList(BaseModel):
    """What lives on a host."""

    items: list[Incarnation]


class ExecOrder(BaseModel):
    """One command. `argv` is what runs; a shell command has been made into the guest shell's argv by the caller.

    `timeout_s` None means no bound. `stdin` is base64 of the bytes, None is end-of-file at once.
    """

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
