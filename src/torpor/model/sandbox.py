"""The sandbox: the durable thing a user owns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from torpor.model.ids import SandboxId, SnapshotId, TemplateName, WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.network import NO_NETWORK, Egress
from torpor.model.volume import Attachment


class OnIdle(StrEnum):
    """What becomes of a sandbox that has been idle for its idle time."""

    HIBERNATE = "hibernate"
    DELETE = "delete"


class OnCrash(StrEnum):
    """What becomes of a sandbox whose machine has died: it is left `failed`, or put back to its last snapshot."""

    FAIL = "fail"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class Care:
    """What the server does for a sandbox of its own accord.

    `idle_timeout_seconds`: after so long without anything in flight `on_idle` is done (None: never). A checkpoint is
    taken every `checkpoint_every_seconds` of running, and after every `checkpoint_every_execs` commands (None: not);
    the newest `checkpoint_keep` of these are kept.
    """

    idle_timeout_seconds: int | None = None
    on_idle: OnIdle = OnIdle.HIBERNATE
    on_crash: OnCrash = OnCrash.FAIL
    checkpoint_every_seconds: int | None = None
    checkpoint_every_execs: int | None = None
    checkpoint_keep: int = 3


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What is recorded of one sandbox. Times are aware, in UTC.

    `expires_at` is the hard end of its life (None: none). `boot_ms` is how long the host took to bring the machine to
    life, from the order to the guest's acknowledgement, in milliseconds (None until it ran). `reason` says why a
    sandbox is `failed`. `from_snapshot` is what it came to life from, if not from its template's, and `parent` the
    sandbox it was forked from. `last_snapshot` is the newest snapshot it can go back to: its own, else `from_snapshot`.
    `network` is what it may reach, `guest_ip` its own address (None: it has no network).

    Of its secrets only the names are known here: the values are in the guest's memory. `has_own_secrets`: they were
    given when it was made, so what it was made from holds others, which must not come back to it. `volumes`: those that
    it has, in the order in which its machine has them.
    """

    id: SandboxId
    workspace: WorkspaceId
    template: TemplateName
    state: State
    created_at: datetime
    cpu: int
    memory_mb: int
    disk_gb: int
    expires_at: datetime | None = None
    ttl_seconds: int | None = None
    name: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    boot_ms: int | None = None
    reason: str | None = None
    parent: SandboxId | None = None
    from_snapshot: SnapshotId | None = None
    last_snapshot: SnapshotId | None = None
    care: Care = Care()
    network: Egress = NO_NETWORK
    guest_ip: str | None = None
    secret_names: tuple[str, ...] = ()
    has_own_secrets: bool = False
    volumes: tuple[Attachment, ...] = ()
