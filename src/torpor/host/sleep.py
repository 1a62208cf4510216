"""Which sandboxes sleep, as the disk tells it.

A sandbox's folder has the file `asleep` with the id of the snapshot it sleeps in. It is durable before that snapshot is
published, so that one rename, the snapshot's, puts the sandbox to sleep; and it is gone once a wake was acknowledged.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from torpor.errors import NotFound, SnapshotCorrupt, TorporError
from torpor.host.live import Sleeper
from torpor.kit.files import fsync_path, remove_tree, write_whole
from torpor.model.ids import SandboxId, SnapshotId, is_sandbox_id, is_snapshot_id
from torpor.storage.frozen import Frozen, link_parts
from torpor.storage.frozen import read as read_frozen
from torpor.storage.layout import Layout
from torpor.storage.snapshots import Snapshots
from torpor.vmm.driver import Place

_log = structlog.get_logger(__name__)

BASE = "base"
_MARKER, _WOKEN = "asleep", "woken"


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
    """Take back what `mark_awake` noted, if it did. Needs no room on the disk."""
    if (folder / _WOKEN).exists():
        (folder / _WOKEN).rename(folder / _MARKER)


def settle_awake(folder: Path) -> None:
    """Make what `mark_awake` noted outlast a loss of power."""
    fsync_path(folder)


def is_marked(folder: Path) -> bool:
    """Tell whether it is noted that the sandbox sleeps."""
    return (folder / _MARKER).exists()


def find_sleepers(layout: Layout, snapshots: Snapshots) -> tuple[list[Sleeper], dict[SandboxId, str]]:
    """Return the sandboxes that sleep in a data directory where nothing runs, and remove all others.

    What is left of running ones is of no use without their memory. One whose base cannot be read is left alone, so that
    somebody can look at it; these come second, with what is wrong with them.
    """
    found: list[Sleeper] = []
    damaged: dict[SandboxId, str] = {}
    for folder in sorted(layout.sandboxes.iterdir()):
        if not is_sandbox_id(folder.name) or not is_marked(folder):
            _log.info("removed what a former server left", sandbox=folder.name)
            remove_tree(folder)
            continue
        try:
            asleep = _snapshot_of(folder)
            found.append(_sleeper(folder, asleep, snapshots))
        except NotFound:
            _log.info("removed a sandbox whose hibernation did not come about", sandbox=folder.name)
            remove_tree(folder)
        except (TorporError, OSError) as error:
            _log.error("a sandbox that slept cannot be read", sandbox=folder.name, error=str(error))
            damaged[SandboxId(folder.name)] = str(error)
    return found, damaged


def _snapshot_of(folder: Path) -> SnapshotId:
    """Return what a sandbox is marked to sleep in. Raises SnapshotCorrupt for a mark that says nothing of the kind."""
    text = (folder / _MARKER).read_bytes().decode(errors="replace").strip()
    if not is_snapshot_id(text):
        raise SnapshotCorrupt(f"{folder / _MARKER} does not name a snapshot")
    return SnapshotId(text)


def _sleeper(folder: Path, asleep: SnapshotId, snapshots: Snapshots) -> Sleeper:
    """Finish what a crash may have interrupted: the base, and what the machine left."""
    if (base := _base_of(folder)) is None or base.snapshot is None or base.snapshot.id != asleep:
        link_parts(snapshots.open(asleep).folder, folder / BASE)
        base = read_frozen(folder / BASE)
    clear(folder)
    sandbox = SandboxId(folder.name)
    return Sleeper(sandbox, base, Place(sandbox, folder))


def _base_of(folder: Path) -> Frozen | None:
    return read_frozen(folder / BASE) if (folder / BASE).exists() else None


def clear(folder: Path) -> None:
    """Remove what a machine wrote in a sandbox's folder but its logs; what it came from stays."""
    for entry in folder.iterdir():
        if entry.name not in (BASE, _MARKER, _WOKEN) and not entry.name.startswith(("console.log", "vmm.log")):
            remove_tree(entry)
