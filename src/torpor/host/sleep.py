"""Which sandboxes sleep, as the disk tells it.

A sandbox's folder has the file `asleep` with the id of the snapshot it sleeps in. It is durable before that snapshot is
published, so that one rename, the snapshot's, puts the sandbox to sleep; and it is gone once a wake was acknowledged.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from torpor.errors import SnapshotCorrupt
from torpor.host.live import Sleeper
from torpor.host.network_notes import EGRESS, read_egress
from torpor.host.record import BASE, DEADLINE, USAGE, read_usage
from torpor.host.volume_notes import VOLUMES, read_volumes
from torpor.kit.faultpoints import reached
from torpor.kit.files import fsync_path, remove_tree, write_whole
from torpor.model.ids import SandboxId, SnapshotId, is_snapshot_id
from torpor.model.usage import Reading
from torpor.storage.frozen import Frozen, link_parts
from torpor.storage.frozen import read as read_frozen
from torpor.storage.snapshots import Snapshots
from torpor.vmm.driver import Place

_log = structlog.get_logger(__name__)
_MARKER, _WOKEN = "asleep", "woken"
_KEPT = frozenset({BASE, _MARKER, _WOKEN, DEADLINE, USAGE, EGRESS, VOLUMES})


def mark_asleep(folder: Path, snapshot: SnapshotId) -> None:
    """Note, durably, that the sandbox sleeps as soon as that snapshot is published."""
    write_whole(folder / _MARKER, f"{snapshot}\n".encode())


def unmark(folder: Path) -> None:
    """Note that the sandbox does not sleep after all."""
    (folder / _MARKER).unlink(missing_ok=True)


def mark_awake(folder: Path) -> None:
    """Note that the sandbox is awake. `settle_awake` makes it durable; until then `mark_asleep_again` takes it back."""
    (folder / _MARKER).rename(folder / _WOKEN)


def mark_asleep_again(folder: Path) -> None:
    """Take back what `mark_awake` noted, durably where the disk allows it. Needs no room there."""
    (folder / _WOKEN).rename(folder / _MARKER)
    try:
        fsync_path(folder)
    except OSError as error:
        _log.error("that a sandbox sleeps again may not outlast a loss of power", folder=folder.name, error=str(error))
    reached("wake.taken_back")


def settle_awake(folder: Path) -> None:
    """Make what `mark_awake` noted outlast a loss of power."""
    fsync_path(folder)
    reached("wake.settled")


def is_marked(folder: Path) -> bool:
    """Tell whether it is noted that the sandbox sleeps."""
    return (folder / _MARKER).exists()


def sleeps(folder: Path, snapshots: Snapshots) -> bool:
    """Tell whether a sandbox sleeps: it is marked to, and what it is to sleep in is there.

    Changes nothing. Raises SnapshotCorrupt, Unsupported, OSError where that cannot be told.
    """
    if not is_marked(folder):
        return False
    asleep = _snapshot_of(folder)
    return asleep in snapshots or _is_of(_base_of(folder), asleep)


def _is_of(base: Frozen | None, snapshot: SnapshotId) -> bool:
    return base is not None and base.snapshot is not None and base.snapshot.id == snapshot


def _snapshot_of(folder: Path) -> SnapshotId:
    """Return what a sandbox is marked to sleep in. Raises SnapshotCorrupt for a mark that says nothing of the kind."""
    text = (folder / _MARKER).read_bytes().decode(errors="replace").strip()
    if not is_snapshot_id(text):
        raise SnapshotCorrupt(f"{folder / _MARKER} does not name a snapshot")
    return SnapshotId(text)


def find_sleeper(folder: Path, snapshots: Snapshots) -> Sleeper:
    """Return a sandbox that sleeps, and has no machine; with what a crash may have interrupted finished.

    That is its base, and removing what a machine left. Raises TorporError or OSError if it cannot be read.
    """
    asleep, base = _snapshot_of(folder), _base_of(folder)
    if base is None or not _is_of(base, asleep):
        link_parts(snapshots.open(asleep).folder, folder / BASE)
        base = read_frozen(folder / BASE)
    clear(folder)
    sandbox, counted = SandboxId(folder.name), read_usage(folder)
    used = Reading() if counted is None else Reading(counted.cpu_seconds, counted.resident_byte_seconds)
    place, egress = Place(sandbox, folder), read_egress(folder)
    return Sleeper(sandbox, base, place, used=used, egress=egress, volumes=read_volumes(folder))


def _base_of(folder: Path) -> Frozen | None:
    return read_frozen(folder / BASE) if (folder / BASE).exists() else None


def clear(folder: Path) -> None:
    """Remove what a machine wrote in a sandbox's folder but its logs; what it came from stays, and its notes."""
    for entry in folder.iterdir():
        if entry.name not in _KEPT and not entry.name.startswith(("console.log", "vmm.log")):
            remove_tree(entry)
