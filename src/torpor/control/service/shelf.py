"""What the control plane knows of snapshots beside their records: which are in use, and which nobody needs any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from torpor.control.store.contract import SnapshotRecord
from torpor.model.ids import SandboxId, SnapshotId
from torpor.model.sandbox import Sandbox
from torpor.model.snapshot import TRANSIENT, Cost, Kind
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

    def forget_other_strays(self, there: Iterable[str]) -> None:
        """Forget the strays that are not there any more."""
        self._strays &= set(there)


def record_of(frozen: host.Frozen, owner: Sandbox) -> SnapshotRecord:
    """Return what is to be recorded of a snapshot on a host, which is one of `owner`."""
    return SnapshotRecord(
        id=SnapshotId(frozen.id),
        workspace=owner.workspace,
        sandbox=SandboxId(frozen.sandbox),
        kind=Kind(frozen.kind),
        template=owner.template,
        created_at=frozen.created_at,
        cpu=frozen.cpu,
        memory_mb=frozen.memory_mb,
        disk_gb=frozen.disk_gb,
        name=frozen.name,
        parent=None if frozen.parent is None else SnapshotId(frozen.parent),
        size_bytes=frozen.size_bytes,
        cost=Cost(frozen.pause_ms, frozen.took_ms, frozen.dirty_bytes, frozen.written_bytes),
        network=owner.network,
        secret_names=owner.secret_names,
        volumes=owner.volumes,
    )


def superfluous(newest_first: Sequence[SnapshotRecord], owner: Sandbox | None) -> list[SnapshotRecord]:
    """Return which of one sandbox's snapshots nobody needs any more; `owner` is that sandbox, None once it is deleted.

    A living sandbox keeps its newest hibernation and fork, and as many automatic checkpoints as it says. A deleted one
    keeps only what was asked for.
    """
    left = dict.fromkeys(TRANSIENT, 1 if owner is not None else 0)
    if owner is not None:
        left[Kind.AUTOMATIC] = owner.care.checkpoint_keep
    spare: list[SnapshotRecord] = []
    for record in newest_first:
        if record.kind in TRANSIENT:
            left[record.kind] -= 1
            if left[record.kind] < 0:
                spare.append(record)
    return spare
