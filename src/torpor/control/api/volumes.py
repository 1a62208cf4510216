"""`/v1/volumes`: named disks that outlive sandboxes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from torpor import errors
from torpor.control.api.deps import Targets, ThePlane, Workspace
from torpor.control.api.problems import refusals
from torpor.control.service import volumes
from torpor.control.service.volumes import Shown
from torpor.wire.volumes import CreateVolume, HolderView, VolumeList, VolumeView

router = APIRouter(prefix="/v1/volumes", tags=["volumes"])

Name = Annotated[str, Path(description="a volume's name", max_length=63)]


@router.post("", status_code=201, responses=refusals(errors.Conflict, errors.QuotaExceeded, errors.OutOfSpace))
async def create_volume(plane: ThePlane, workspace: Workspace, wish: CreateVolume, targets: Targets) -> VolumeView:
    """Make a volume with an empty file system."""
    made = await volumes.create_volume(plane, workspace, wish)
    targets.append(made.volume.id)
    return _view(made)


@router.get("", responses=refusals())
async def list_volumes(plane: ThePlane, workspace: Workspace) -> VolumeList:
    """List the workspace's volumes, by name."""
    return VolumeList(items=[_view(each) for each in await volumes.list_volumes(plane, workspace)])


@router.get("/{name}", responses=refusals(errors.NotFound))
async def show_volume(plane: ThePlane, workspace: Workspace, name: Name) -> VolumeView:
    """Show one volume, and who has it."""
    return _view(await volumes.show_volume(plane, workspace, name))


@router.delete("/{name}", status_code=204, responses=refusals(errors.NotFound, errors.Conflict))
async def delete_volume(plane: ThePlane, workspace: Workspace, name: Name, targets: Targets) -> None:
    """Delete a volume with all that is in it; refused while a sandbox has it, whatever state that is in."""
    targets.append(await volumes.delete_volume(plane, workspace, name))


def _view(shown: Shown) -> VolumeView:
    volume = shown.volume
    return VolumeView(
        id=volume.id,
        name=volume.name,
        size_mb=volume.size_mb,
        created_at=volume.created_at,
        disk_bytes=0 if shown.file is None else shown.file.disk_bytes,
        attached_to=[
            HolderView(sandbox_id=sandbox.id, path=each.path, read_only=each.read_only)
            for sandbox, each in shown.holders
        ],
        problem=None if shown.file is not None else "its file is not on the host: no sandbox can have it",
    )
