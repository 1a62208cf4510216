"""Snapshots: recording, finding, listing, checking and removing them."""

from __future__ import annotations

from contextlib import suppress

import structlog

from torpor.control.service.cursors import cursor_after
from torpor.control.service.plane import Plane
from torpor.control.service.shelf import record_of, superfluous
from torpor.control.store.contract import SnapshotListing, SnapshotRecord
from torpor.errors import NotFound, OutcomeUnknown, TorporError
from torpor.kit import faultpoints
from torpor.model.ids import SandboxId, SnapshotId, WorkspaceId, is_snapshot_id
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox
from torpor.wire import host
from torpor.wire.public import Verified

_log = structlog.get_logger("torpor.control")


async def show_snapshot(plane: Plane, workspace: WorkspaceId, snapshot_id: str) -> SnapshotRecord:
    """Return a snapshot. Raises NotFound for one that is unknown, another workspace's or deleted."""
    found = await plane.store.snapshot(SnapshotId(snapshot_id)) if is_snapshot_id(snapshot_id) else None
    if found is None or found.workspace != workspace:
        raise NotFound(f"there is no snapshot {snapshot_id}", hint="torpor snapshots lists those there are")
    return found


async def list_snapshots(plane: Plane, listing: SnapshotListing) -> tuple[list[SnapshotRecord], str | None]:
    """Return one page of snapshots, the newest first, and the cursor of the next page if there may be one."""
    page = await plane.store.snapshots(listing)
    return page, cursor_after(page[-1]) if len(page) == listing.limit else None


async def delete_snapshot(plane: Plane, workspace: WorkspaceId, snapshot_id: str) -> None:
    """Remove a snapshot; what came from it lives on. Raises NotFound, also the second time."""
    record = await show_snapshot(plane, workspace, snapshot_id)
    async with plane.gate.alone(record.sandbox):
        await show_snapshot(plane, workspace, snapshot_id)
        await _drop(plane, record)


async def verify_snapshot(plane: Plane, workspace: WorkspaceId, snapshot_id: str) -> Verified:
    """Compare every byte of a snapshot with its checksum. Raises NotFound, SnapshotCorrupt if one differs."""
    record = await show_snapshot(plane, workspace, snapshot_id)
    with plane.shelf.using(record.id):
        return await plane.host.verify_snapshot(record.id)


async def keep(plane: Plane, owner: Sandbox, frozen: host.Frozen) -> SnapshotRecord:
    """Record a snapshot that a host has made of a sandbox.

    Raises OutcomeUnknown: it is there, whatever the record says.
    """
    record = record_of(frozen, owner)
    try:
        await plane.store.add_snapshot(record)
    except TorporError as error:
        raise OutcomeUnknown(f"snapshot {record.id} was made, but could not be recorded") from error
    plane.bells.news.ring()
    faultpoints.reached("snapshot.recorded")
    plane.pace.kept(record.sandbox, record.kind)
    return record


async def tidy(plane: Plane, sandbox_id: SandboxId) -> None:
    """Remove a sandbox's automatic snapshots that nobody needs any more.

    What is in use, or cannot be removed now, stays for the next time.
    """
    async with plane.gate.alone(sandbox_id):
        sandbox = await plane.store.get(sandbox_id)
        owner = sandbox if sandbox is not None and sandbox.state is not State.DELETED else None
        for record in superfluous(await plane.store.snapshots_of(sandbox_id), owner):
            if not plane.shelf.is_used(record.id):
                await _drop_or_log(plane, record)


async def _drop_or_log(plane: Plane, record: SnapshotRecord) -> None:
    try:
        await _drop(plane, record)
    except TorporError as error:
        _log.warning("not tidied", snapshot=record.id, sandbox=record.sandbox, error=error.message)


async def _drop(plane: Plane, record: SnapshotRecord) -> None:
    with suppress(NotFound):  # a crash came between the two once
        await plane.host.remove_snapshot(record.id)
    await plane.store.remove_snapshot(record.id)
