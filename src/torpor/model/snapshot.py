"""Snapshots: published, immutable, complete checkpoints of one sandbox: its memory, state and disk of one instant."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from torpor.model.ids import SandboxId, SnapshotId
from torpor.model.template import Template
from torpor.model.volume import Attachment

# The form of a snapshot's folder and manifest: raise it when an older version could not read them.
SNAPSHOT_FORMAT = 2


class Kind(StrEnum):
    """What a snapshot was taken for.

    A `checkpoint` was asked for and is kept until somebody deletes it. The others come about by themselves, and none
    outlives its sandbox: an `automatic` one is a checkpoint that the server takes now and then, of which the newest few
    are kept; a `hibernation` is what a sandbox sleeps in, a `fork` what children were made from, and of each of these
    the newest is kept.
    """

    CHECKPOINT = "checkpoint"
    AUTOMATIC = "automatic"
    HIBERNATION = "hibernation"
    FORK = "fork"


# Those that nobody asked to be kept.
TRANSIENT = frozenset({Kind.AUTOMATIC, Kind.HIBERNATION, Kind.FORK})


@dataclass(frozen=True, slots=True)
class Cost:
    """What a freeze took. Times in milliseconds, sizes in bytes.

    `pause_ms`: how long the guest's processes stood still (for a hibernation: until the copy was complete). `took_ms`:
    from the order until all of it was durable but its name. `dirty_bytes`: pages the guest had written since it came to
    life. `written_bytes`: how much of that differed from the snapshot before and was written.
    """

    pause_ms: float = 0.0
    took_ms: float = 0.0
    dirty_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A published snapshot.

    `sandbox` is whose it is; `template` says what the machine is made of and where its state may be loaded, and is
    complete: the snapshot outlives the template it began as. `parent` is the snapshot it was copied over, None for a
    template's. `size_bytes`: what it takes up on disk beyond what it shares with that. `volumes`: what its sandbox had,
    of each of which it holds a copy.
    """

    id: SnapshotId
    kind: Kind
    sandbox: SandboxId
    created_at: datetime
    template: Template
    parent: SnapshotId | None = None
    name: str | None = None
    size_bytes: int = 0
    cost: Cost = Cost()
    volumes: tuple[Attachment, ...] = ()
