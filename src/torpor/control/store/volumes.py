"""What the control plane remembers of volumes: this part of the store's contract.

Who has a volume is no record of its own: it stands with each sandbox, and is over when that is deleted.
"""

from __future__ import annotations

from typing import Protocol

from torpor.errors import Conflict
from torpor.model.ids import VolumeId, WorkspaceId
from torpor.model.sandbox import Sandbox
from torpor.model.volume import Volume


def volume_name_taken(volume: Volume) -> Conflict:
    """Return the refusal of a name that the workspace has a volume of already."""
    return Conflict(f"there is a volume {volume.name!r} already", hint="choose another name, or delete that one first")


class VolumeStore(Protocol):
    """Volumes. What holds of every call of the store holds of these."""

    async def add_volume(self, volume: Volume) -> None:
        """Record a volume. Raises Conflict if the workspace has one of that name, ready or not."""

    async def volume(self, workspace: WorkspaceId, name: str) -> Volume | None:
        """Return a volume by its name, ready or not; None if there is none."""

    async def volumes(self, workspace: WorkspaceId) -> list[Volume]:
        """Return the volumes of a workspace, ready or not, by name."""

    async def every_volume(self) -> list[Volume]:
        """Return every volume of every workspace, in no order."""

    async def mark_volume(self, volume_id: VolumeId, *, ready: bool) -> None:
        """Note whether a volume is ready; fine if there is none."""

    async def remove_volume(self, volume_id: VolumeId) -> None:
        """Drop the record of a volume; fine if there is none."""

    async def with_volumes(self, workspace: WorkspaceId) -> list[Sandbox]:
        """Return the living sandboxes of a workspace that have volumes, in no order."""
