"""Published snapshots on disk: drafted aside, published by one rename, opened with a check, listed, removed."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import structlog

from torpor.errors import Conflict, NotFound, SnapshotCorrupt, Unsupported
from torpor.kit.files import aside, fsync_path, remove_tree
from torpor.model.ids import SnapshotId, is_snapshot_id
from torpor.model.snapshot import Snapshot
from torpor.storage import frozen
from torpor.storage.frozen import MANIFEST, Frozen, Sealed
from torpor.storage.layout import Layout
from torpor.storage.room import written

_log = structlog.get_logger(__name__)

_NOT_PUBLISHED = "the snapshot could not be published"
_MEND = "delete it, and go back to another snapshot; `torpor snapshots` lists them"


def write_manifest(draft: Path, snapshot: Snapshot, sealed: Sealed) -> Snapshot:
    """Write the manifest of a sealed draft, which is durable then; return the snapshot with its size filled in.

    Raises OutOfSpace where the host's disk is full, FreezeFailed.
    """
    sized = dataclasses.replace(snapshot, size_bytes=sealed.size_bytes)
    frozen.write_record(draft, sized, sealed)
    return sized


class Snapshots:
    """The folder of snapshots. All of it blocks, `verify` and the removal of large ones for a while."""

    def __init__(self, layout: Layout) -> None:
        self._folder = layout.snapshots
        self._read: dict[str, tuple[_Seen, Snapshot | None]] = {}  # by name, what each manifest said when last seen

    def path(self, snapshot: SnapshotId) -> Path:
        """Return the folder of a snapshot."""
        return self._folder / snapshot

    def __contains__(self, snapshot: SnapshotId) -> bool:
        """Tell whether a snapshot is published, damaged or not."""
        return is_snapshot_id(snapshot) and self.path(snapshot).is_dir()

    @contextmanager
    def draft(self, snapshot: SnapshotId) -> Iterator[Path]:
        """Yield a new folder to fill, which vanishes at the end of the block unless it was published.

        Raises Conflict if there is a snapshot of that id, OutOfSpace, FreezeFailed.
        """
        if snapshot in self:
            raise _is_there(snapshot)
        with ExitStack() as undo:
            with written(self._folder, _NOT_PUBLISHED):
                draft = undo.enter_context(aside(self.path(snapshot)))
            yield draft

    def publish(self, draft: Path, snapshot: SnapshotId) -> None:
        """Let a draft with its manifest be the snapshot: by one rename, which is durable when this returns.

        Raises Conflict if there is a snapshot of that id, OutOfSpace, FreezeFailed.
        """
        with written(self._folder, _NOT_PUBLISHED):
            try:
                draft.rename(self.path(snapshot))
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise _is_there(snapshot) from error
                raise
            self._settle(snapshot)

    def _settle(self, snapshot: SnapshotId) -> None:
        """Make the rename durable; what cannot be is taken back, as it would be there without anybody's knowing."""
        try:
            fsync_path(self._folder)
        except BaseException:
            remove_tree(self.path(snapshot))
            raise

    def get(self, snapshot: SnapshotId) -> Snapshot:
        """Return a snapshot by its manifest alone. Raises NotFound, SnapshotCorrupt, Unsupported."""
        return self._get(snapshot)[1]

    def open(self, snapshot: SnapshotId) -> Frozen:
        """Return a snapshot to be restored, its parts checked as `frozen.check` does.

        Raises NotFound, SnapshotCorrupt (damaged), Unsupported (a format this version cannot read).
        """
        found, _ = self._get(snapshot)
        frozen.check(found)
        return found

    def verify(self, snapshot: SnapshotId) -> int:
        """Compare every byte of a snapshot with its checksum, and return how many that were.

        Raises NotFound, SnapshotCorrupt, Unsupported.
        """
        found, _ = self._get(snapshot)
        return frozen.verify(found)

    def _get(self, snapshot: SnapshotId) -> tuple[Frozen, Snapshot]:
        if snapshot not in self:
            raise NotFound(f"there is no snapshot {snapshot!r}", hint="`torpor snapshots` lists those there are")
        title = f"the snapshot {snapshot}"
        found = frozen.read(self.path(snapshot), title, _MEND)
        if found.snapshot is None or found.snapshot.id != snapshot:
            raise SnapshotCorrupt(f"{title} holds {found.title}", hint=_MEND)
        return found, found.snapshot

    def all(self) -> list[Snapshot]:
        """Return every snapshot whose manifest can be read, oldest first; the log tells of one that cannot.

        A manifest is read once, and again only if its file is another.
        """
        seen: dict[str, tuple[_Seen, Snapshot | None]] = {}
        for entry in self._folder.iterdir():
            if is_snapshot_id(entry.name):
                now, before = _look(entry / MANIFEST), self._read.get(entry.name)
                known = before is not None and before[0] == now
                seen[entry.name] = before if before is not None and known else (now, self._readable(entry.name))
        self._read = seen
        return sorted(
            (snapshot for _, snapshot in seen.values() if snapshot is not None),
            key=lambda snapshot: (snapshot.created_at, snapshot.id),
        )

    def names(self) -> list[SnapshotId]:
        """Return the ids of all snapshots there are, damaged or not, sorted."""
        return sorted(SnapshotId(entry.name) for entry in self._folder.iterdir() if is_snapshot_id(entry.name))

    def _readable(self, name: str) -> Snapshot | None:
        try:
            return self.get(SnapshotId(name))
        except NotFound:
            return None  # it was removed meanwhile
        except (SnapshotCorrupt, Unsupported) as error:
            _log.warning("a snapshot cannot be read", snapshot=name, error=error.message, hint=error.hint)
            return None

    def remove(self, snapshot: SnapshotId) -> None:
        """Remove a snapshot, also a damaged one; what came from it goes on. Raises NotFound."""
        if snapshot not in self:
            raise NotFound(f"there is no snapshot {snapshot!r}")
        remove_tree(self.path(snapshot))


# By which a file is known to be the one it was: its number and when it was changed, None where there is none.
_Seen = tuple[int, int] | None


def _look(manifest: Path) -> _Seen:
    try:
        status = manifest.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _is_there(snapshot: SnapshotId) -> Conflict:
    return Conflict(f"there is a snapshot {snapshot} already", hint="take it under a new id")
