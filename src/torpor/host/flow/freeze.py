"""freeze: a running guest, written to disk as a published snapshot. One of the two hard operations."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ParamSpec, TypeVar

import structlog

from torpor.errors import FreezeFailed
from torpor.host.flow.stillness import go_on, stand_still
from torpor.host.host import Host
from torpor.host.live import Incarnation
from torpor.host.record import BASE
from torpor.host.sleep import mark_asleep, unmark
from torpor.host.trouble import translated
from torpor.host.volume_notes import volume_files
from torpor.kit.faultpoints import reached
from torpor.kit.files import clone, fsync_path
from torpor.kit.runs import Written
from torpor.kit.shielded import shielded
from torpor.kit.together import together
from torpor.model.ids import SnapshotId
from torpor.model.snapshot import Cost, Kind, Snapshot
from torpor.storage.frozen import DISK, MEMORY, STATE, Changes, link_parts, seal, volume_part
from torpor.storage.frozen import read as read_frozen
from torpor.storage.snapshots import write_manifest
from torpor.storage.volume import ensure_room

P = ParamSpec("P")
T = TypeVar("T")

_log = structlog.get_logger(__name__)
_NOT_WRITTEN = "the snapshot was not written"
# What a freeze writes is not known before; this is asked for, and a disk that gets full all the same ends the freeze.
_ROOM_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FreezeOrder:
    """Which snapshot is to be made. With `stay` the guest goes on standing still: it is put to sleep."""

    id: SnapshotId
    kind: Kind = Kind.CHECKPOINT
    name: str | None = None
    stay: bool = False


async def freeze(host: Host, incarnation: Incarnation, order: FreezeOrder) -> Snapshot:
    """Write a running, or paused, guest to disk and return the published snapshot.

    The guest stands still while its dirty pages are copied, and goes on as soon as that is done, unless it is paused or
    is to `stay`. If any step fails it goes on too, nothing of the snapshot is left, and every other one is as it was.

    Raises FreezeFailed, OutOfSpace, Conflict for an id that is taken, SandboxLost if the machine has died.
    """
    watch = _Watch()
    with translated(FreezeFailed, _NOT_WRITTEN):
        await _in_thread(ensure_room, host.layout, _ROOM_BYTES)
        with host.snapshots.draft(order.id) as draft:
            async with AsyncExitStack() as undo:
                if not incarnation.stands_still:
                    undo.push_async_callback(go_on, incarnation, host.connect_guest)
                shares = await _get_ready(host, incarnation, draft, order, watch)
                changes = await _copy(incarnation, draft, shares=shares)
                if not order.stay:
                    await undo.aclose()  # it goes on; what is left needs only the copy
                watch.go_on()
                snapshot = await _in_thread(_publish, host, incarnation, order, draft, changes, watch)
                undo.pop_all()
    incarnation.base = read_frozen(incarnation.place.folder / BASE)
    _log.info("frozen", sandbox=incarnation.id, snapshot=order.id, **dataclasses.asdict(snapshot.cost))
    return snapshot


async def _get_ready(host: Host, incarnation: Incarnation, draft: Path, order: FreezeOrder, watch: _Watch) -> bool:
    """Clone the image that the guest's pages go over, flush its disk, and let it stand still.

    One that goes on after is stopped as late as can be; for one that leaves all is done at once. Returns whether the
    clone shares blocks with the image.
    """
    image = incarnation.base.folder / MEMORY
    shares: list[bool] = []
    ahead = [
        _in_thread(lambda: shares.append(_draft(image, draft))),
        incarnation.machine.read_ahead(image),
        _in_thread(fsync_path, incarnation.place.folder / DISK),
        *(_in_thread(fsync_path, file) for file in volume_files(incarnation.place.folder, incarnation.volumes)),
    ]
    if not order.stay:
        await together(*ahead)
        ahead.clear()
    watch.stop()
    await together(stand_still(incarnation, host.connect_guest, leaving=order.stay), *ahead)
    reached("freeze.stopped")
    return shares == [True]


def _draft(image: Path, draft: Path) -> bool:
    shares = clone(image, draft / MEMORY)
    reached("freeze.drafted")
    return shares


async def _copy(incarnation: Incarnation, draft: Path, *, shares: bool) -> Changes:
    """Copy everything that has to be of one instant."""
    await incarnation.machine.save_state(draft / STATE)
    written = await incarnation.machine.save_memory(draft / MEMORY, like=incarnation.base.folder / MEMORY)
    await _in_thread(_copy_disks, incarnation, draft)
    reached("freeze.copied")
    return Changes(incarnation.base, written, shares)


def _copy_disks(incarnation: Incarnation, draft: Path) -> None:
    folder = incarnation.place.folder
    clone(folder / DISK, draft / DISK)
    for bay, file in enumerate(volume_files(folder, incarnation.volumes)):
        clone(file, draft / volume_part(bay))


def _publish(
    host: Host, incarnation: Incarnation, order: FreezeOrder, draft: Path, changes: Changes, watch: _Watch
) -> Snapshot:
    """Make the copy durable, and the snapshot appear. The sandbox's base is it from then on."""
    folder = incarnation.place.folder
    sealed = seal(draft, changes)
    before = incarnation.base.snapshot
    snapshot = Snapshot(
        id=order.id,
        kind=order.kind,
        sandbox=incarnation.id,
        created_at=datetime.now(UTC),
        template=incarnation.base.template,
        parent=before.id if before is not None else None,
        name=order.name,
        cost=watch.cost(changes.memory),
        volumes=incarnation.volumes,
    )
    snapshot = write_manifest(draft, snapshot, sealed)
    reached("freeze.sealed")
    if not order.stay:
        _appear(host, folder, draft, order.id)
        return snapshot
    mark_asleep(folder, order.id)
    reached("freeze.marked")
    try:
        _appear(host, folder, draft, order.id)
    except BaseException:
        unmark(folder)
        raise
    return snapshot


def _appear(host: Host, folder: Path, draft: Path, snapshot: SnapshotId) -> None:
    host.snapshots.publish(draft, snapshot)
    reached("freeze.published")
    try:
        link_parts(host.snapshots.path(snapshot), folder / BASE)
        reached("freeze.linked")
    except BaseException:
        host.snapshots.remove(snapshot)
        raise


class _Watch:
    """Measures a freeze."""

    def __init__(self) -> None:
        self._began = self._stopped = self._went_on = time.monotonic()

    def stop(self) -> None:
        self._stopped = time.monotonic()

    def go_on(self) -> None:
        self._went_on = time.monotonic()

    def cost(self, written: Written) -> Cost:
        return Cost(
            pause_ms=round((self._went_on - self._stopped) * 1000, 1),
            took_ms=round((time.monotonic() - self._began) * 1000, 1),
            dirty_bytes=written.dirty_bytes,
            written_bytes=written.written_bytes,
        )


async def _in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do blocking work in a thread, to its end: what it works on is not taken away under it."""
    return await shielded(asyncio.to_thread(work, *args, **kwargs))
