"""The sandbox: the durable thing a user owns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from torpor.model.ids import SandboxId, SnapshotId, TemplateName, WorkspaceId
from torpor.model.lifecycle import State


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What is recorded of one sandbox. Times are aware, in UTC.

    `expires_at` is the hard end of its life (None: none). `boot_ms` is how long the host took to bring the machine to
    life, from the order to the guest's acknowledgement, in milliseconds (None until it ran). `reason` says why a
    sandbox is `failed`. `from_snapshot` is what it came to life from, if not from its template's, and `parent` the
    sandbox it was forked from. `last_snapshot` is the newest snapshot it can go back to: its own, else `from_snapshot`.
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
