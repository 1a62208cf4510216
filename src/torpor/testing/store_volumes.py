"""The volumes of the store in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from torpor.control.store.volumes import volume_name_taken
from torpor.model.ids import SandboxId, VolumeId, WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox
from torpor.model.volume import Volume


class MemoryVolumes:
    """This part of a store in memory. Each call gives way once, as a real store does."""

    _sandboxes: dict[SandboxId, Sandbox]

    def __init__(self) -> None:
        super().__init__()
        self._volumes: dict[VolumeId, Volume] = {}

    async def add_volume(self, volume: Volume) -> None:
        await asyncio.sleep(0)
        if any((one.workspace, one.name) == (volume.workspace, volume.name) for one in self._volumes.values()):
            raise volume_name_taken(volume)
        self._volumes[volume.id] = volume

    async def volume(self, workspace: WorkspaceId, name: str) -> Volume | None:
        return next((one for one in await self.volumes(workspace) if one.name == name), None)

    async def volumes(self, workspace: WorkspaceId) -> list[Volume]:
        mine = [one for one in await self.every_volume() if one.workspace == workspace]
        return sorted(mine, key=lambda one: one.name)

    async def every_volume(self) -> list[Volume]:
        await asyncio.sleep(0)
        return list(self._volumes.values())

    async def mark_volume(self, volume_id: VolumeId, *, ready: bool) -> None:
        await asyncio.sleep(0)
        if volume_id in self._volumes:
            self._volumes[volume_id] = replace(self._volumes[volume_id], ready=ready)

    async def remove_volume(self, volume_id: VolumeId) -> None:
        await asyncio.sleep(0)
        self._volumes.pop(volume_id, None)

    async def with_volumes(self, workspace: WorkspaceId) -> list[Sandbox]:
        await asyncio.sleep(0)
        mine = [one for one in self._sandboxes.values() if one.workspace == workspace and one.volumes]
        return [one for one in mine if one.state is not State.DELETED]
