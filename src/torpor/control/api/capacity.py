"""`/v1/quota`: what a workspace may have, and has; `/v1/capacity`: the same of the host, for admins."""

from __future__ import annotations

from fastapi import APIRouter

from torpor import errors
from torpor.control.api.deps import AnAdmin, ThePlane, Workspace
from torpor.control.api.problems import refusals
from torpor.wire.capacity import Capacity, Promise, QuotaView

router = APIRouter(prefix="/v1", tags=["server"])


@router.get("/quota", responses=refusals())
async def quota(plane: ThePlane, workspace: Workspace) -> QuotaView:
    """Say what the caller's workspace may have, and has."""
    held, limits = await plane.store.holdings(workspace), plane.quotas.quota
    return QuotaView(
        sandboxes=Promise(limit=limits.sandboxes, used=held.sandboxes),
        memory=Promise(limit=limits.memory_bytes, used=held.memory_bytes),
        disk=Promise(limit=limits.disk_bytes, used=held.disk_bytes),
        snapshots=Promise(limit=limits.snapshots, used=held.snapshots),
        templates=Promise(limit=limits.templates, used=held.templates),
        builds=Promise(limit=limits.builds, used=held.builds),
        volumes=Promise(limit=limits.volumes, used=held.volumes),
        volume_space=Promise(limit=limits.volume_bytes, used=held.volume_bytes),
    )


@router.get("/capacity", responses=refusals(errors.Forbidden))
async def capacity(plane: ThePlane, caller: AnAdmin) -> Capacity:  # noqa: ARG001 - who may ask is all there is to it
    """Say how much the host may promise to machines, and has promised."""
    return await plane.host.capacity()
