"""Volumes: made, looked at, deleted, and given to new sandboxes.

Who has a volume stands in the records of sandboxes. So nothing is left of a sandbox that did not come to be; and all
that changes who may have one is done in its workspace's turn, one at a time.

A volume is recorded before it is on the host, and until it is gone from there. One that is not ready, and that nobody
is at work on, was left so by a server that died: it is removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from torpor.control.service.plane import Plane
from torpor.errors import Conflict, InvalidRequest, NotFound, OutcomeUnknown, QuotaExceeded, TorporError
from torpor.kit import faultpoints
from torpor.kit.shielded import shielded
from torpor.model.capacity import MIB, Holdings
from torpor.model.ids import VolumeId, WorkspaceId, new_volume_id
from torpor.model.sandbox import Sandbox
from torpor.model.volume import Attachment, Volume
from torpor.wire import host
from torpor.wire.volumes import CreateVolume, VolumeWish, is_within

_log = structlog.get_logger("torpor.control")


@dataclass(frozen=True, slots=True)
class Shown:
    """A volume, who has it, and its file on the host (None: it is not there)."""

    volume: Volume
    holders: tuple[tuple[Sandbox, Attachment], ...]
    file: host.VolumeFile | None


async def create_volume(plane: Plane, workspace: WorkspaceId, wish: CreateVolume) -> Shown:
    """Make a volume with an empty file system; if it definitely fails, nothing is left.

    Raises Conflict for a name that is taken, QuotaExceeded, OutOfSpace, and what the host raises.
    """
    _check_size(plane, wish)
    volume = Volume(new_volume_id(), workspace, wish.name, wish.size_mb, plane.clock.now())
    async with plane.making_volumes.hold(volume.id):
        async with plane.quotas.turn(workspace, Holdings(volumes=1, volume_bytes=wish.size_mb * MIB)):
            await plane.store.add_volume(volume)
        faultpoints.reached("volume.recorded")
        try:
            file = await plane.host.make_volume(host.MakeVolume(id=volume.id, size_mb=volume.size_mb))
        except OutcomeUnknown:
            raise  # the reconciler finds it not ready
        except BaseException:
            await shielded(_forget(plane, volume))
            raise
        faultpoints.reached("volume.made")
        await plane.store.mark_volume(volume.id, ready=True)
    return Shown(volume, (), file)


def _check_size(plane: Plane, wish: CreateVolume) -> None:
    limit = plane.quotas.quota.volume_size_bytes
    if limit is not None and wish.size_mb * MIB > limit:
        raise QuotaExceeded(
            f"a volume may have {limit // MIB} MiB, and {wish.size_mb} are wanted",
            resource="volume_size",
            limit=limit,
            used=0,
            hint="make it smaller, or several",
        )


async def list_volumes(plane: Plane, workspace: WorkspaceId) -> list[Shown]:
    """Return the volumes of a workspace, by name."""
    files = {each.id: each for each in await plane.host.volumes()}
    sandboxes = await plane.store.with_volumes(workspace)
    recorded = [each for each in await plane.store.volumes(workspace) if each.ready]
    return [Shown(each, _holders(sandboxes, each), files.get(each.id)) for each in recorded]


async def show_volume(plane: Plane, workspace: WorkspaceId, name: str) -> Shown:
    """Return one volume. Raises NotFound for one that is unknown, or another workspace's."""
    volume = await _known(plane, workspace, name)
    files = {each.id: each for each in await plane.host.volumes()}
    return Shown(volume, _holders(await plane.store.with_volumes(workspace), volume), files.get(volume.id))


async def delete_volume(plane: Plane, workspace: WorkspaceId, name: str) -> VolumeId:
    """Remove a volume with all that is in it, and return its id.

    Raises NotFound; Conflict while a sandbox has it, in any state.
    """
    async with plane.making_volumes.hold((await _known(plane, workspace, name)).id):
        async with plane.quotas.turn(workspace, Holdings()):
            volume = await _known(plane, workspace, name)
            if holders := _holders(await plane.store.with_volumes(workspace), volume):
                raise _in_use(volume, holders[0][0], "cannot be deleted")
            await plane.store.mark_volume(volume.id, ready=False)
        faultpoints.reached("volume.marked")
        await _forget(plane, volume)
        return volume.id


async def _forget(plane: Plane, volume: Volume) -> None:
    await plane.host.remove_volume(volume.id)
    faultpoints.reached("volume.removed")
    await plane.store.remove_volume(volume.id)


async def _known(plane: Plane, workspace: WorkspaceId, name: str) -> Volume:
    volume = await plane.store.volume(workspace, name)
    if volume is None or not volume.ready:
        raise NotFound(f"there is no volume {name!r}", hint="`torpor volume list` lists those there are")
    return volume


async def reconcile_volumes(plane: Plane) -> int:
    """Remove what is left of volumes whose making or removal was cut off, and return how many there were."""
    mended = 0
    for volume in await plane.store.every_volume():
        if volume.ready or volume.id in plane.making_volumes:
            continue
        try:
            await _forget(plane, volume)
            mended += 1
        except TorporError as error:
            _log.warning("volume not removed", volume=volume.id, error=error.message)
    return mended


async def attached(plane: Plane, workspace: WorkspaceId, wishes: Sequence[VolumeWish]) -> tuple[Attachment, ...]:
    """Return the volumes that a new sandbox asks for; to be recorded with it in the workspace's turn, which is held.

    Raises InvalidRequest, NotFound, and Conflict, naming who has one, where it cannot have it too.
    """
    if not wishes:
        return ()
    sandboxes = await plane.store.with_volumes(workspace)
    found = []
    for wish in wishes:
        volume = await _known(plane, workspace, wish.name)
        for other, theirs in _holders(sandboxes, volume):
            if theirs.writes or not wish.read_only:
                raise _in_use(volume, other, "is attached" if theirs.writes else "is attached read-only")
        path = wish.path or f"/volumes/{wish.name}"
        found.append(Attachment(volume.id, volume.name, path, volume.size_mb, wish.read_only))
    _check_paths(found)
    return tuple(found)


def _check_paths(found: Sequence[Attachment]) -> None:
    for number, one in enumerate(found):
        for other in found[:number]:
            if one.volume == other.volume:
                raise InvalidRequest(f"volumes names {one.name!r} twice")
            if is_within(one.path, (other.path,)) or is_within(other.path, (one.path,)):
                raise InvalidRequest(f"volumes are mounted beside each other: {one.path} and {other.path} are not")


def _holders(sandboxes: Sequence[Sandbox], volume: Volume) -> tuple[tuple[Sandbox, Attachment], ...]:
    return tuple(
        (sandbox, each)
        for sandbox in sandboxes
        for each in sandbox.volumes
        if each.volume == volume.id and not each.is_copy
    )


def _in_use(volume: Volume, sandbox: Sandbox, how: str) -> Conflict:
    message = f"volume {volume.name!r} {how}: sandbox {sandbox.id}, which is {sandbox.state.value}, has it"
    if how.endswith("read-only"):
        hint = "ask for it read-only too, or delete those sandboxes first"
    else:
        hint = "delete that sandbox first; one that sleeps or has failed keeps its volumes"
    return Conflict(message, seen="attached", needed=["detached"], hint=hint)
