"""What the control plane knows of snapshots beside their records: which are in use, and which nobody needs any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torpor.control.store.contract import SnapshotRecord
from torpor.model.ids import SandboxId, SnapshotId, TemplateName, WorkspaceId
from torpor.model.snapshot import AUTOMATIC, Cost, Kind
from torpor.wire import host


class Shelf:
    """The snapshots that something comes to life from at this moment, and the strays that were spoken of."""

    def __init__(self) -> None:
        self._used = Counter[SnapshotId]()
        self._strays: set[str] = set()

    @contextmanager
    def using(self, snapshot_id: SnapshotId | None) -> Iterator[None]:
        """Keep a snapshot (None: no matter) from being tidied away while the block runs."""
        if snapshot_id is None:
            yield
            return
        self._used[snapshot_id] += 1
        try:
            yield
        finally:
            self._used[snapshot_id] -= 1
            self._used += Counter()  # drops what is at zero

    def is_used(self, snapshot_id: SnapshotId) -> bool:
        """Tell whether somebody is using a snapshot."""
        return snapshot_id in self._used

    def is_news(self, stray: str) -> bool:
        """Tell, the first time only, that a stray has not been spoken of yet."""
        known = stray in self._strays
        self._strays.add(stray)
        return not known


def record_of(frozen: host.Frozen, workspace: WorkspaceId) -> SnapshotRecord:
    """Return what is to be recorded of a snapshot on a host."""
    return SnapshotRecord(
        id=SnapshotId(frozen.id),
        workspace=workspace,
        sandbox=SandboxId(frozen.sandbox),
        kind=Kind(frozen.kind),
        template=TemplateName(frozen.template),
        created_at=frozen.created_at,
        cpu=frozen.cpu,
        memory_mb=frozen.memory_mb,
        disk_gb=frozen.disk_gb,
        name=frozen.name,
        parent=None if frozen.parent is None else SnapshotId(frozen.parent),
        size_bytes=frozen.size_bytes,
        cost=Cost(frozen.pause_ms, frozen.took_ms, frozen.dirty_bytes, frozen.written_bytes),
    )


def superfluous(newest_first: Sequence[SnapshotRecord], *, living: bool) -> list[SnapshotRecord]:
    """Return which of one sandbox's snapshots nobody needs any more.

    Of each automatic kind a living sandbox keeps the newest, and a deleted one keeps none.
    """
    spare: list[SnapshotRecord] = []
    seen: set[Kind] = set()
    for record in newest_first:
        if record.kind in AUTOMATIC and (record.kind in seen or not living):
            spare.append(record)
        seen.add(record.kind)
    return spare
