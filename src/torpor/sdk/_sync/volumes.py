"""Named disks that outlive sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torpor.sdk.foreign import checked, checked_id
from torpor.sdk.http import Call
from torpor.sdk.volumes import Volume
from torpor.wire.volumes import CreateVolume, VolumeList, VolumeView

if TYPE_CHECKING:
    from torpor.sdk._sync.client import Client

Listed = list[Volume]


class Volumes:
    """The volumes of a workspace: `client.volumes`. A sandbox gets them when it is made, and keeps them for life."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, name: str, size_mb: int) -> Volume:
        """Make a volume with an empty file system, and room for `size_mb` MiB.

        It takes up on the server's disk what is written to it. Raises Conflict if there is one of that name,
        InvalidRequest, QuotaExceeded, OutOfSpace.
        """
        wish = checked(CreateVolume, name=name, size_mb=size_mb)
        call = Call("POST", "/volumes", content=wish.model_dump_json().encode(), repeatable=False)
        return Volume.of(self._client.fetch_as(VolumeView, call))

    def list(self) -> Listed:
        """Return the volumes, by name."""
        return [Volume.of(view) for view in (self._client.fetch_as(VolumeList, Call("GET", "/volumes"))).items]

    def get(self, name: str) -> Volume:
        """Return a volume, with who has it. Raises NotFound."""
        return Volume.of(self._client.fetch_as(VolumeView, Call("GET", _path(name))))

    def delete(self, name: str) -> None:
        """Delete a volume with all that is in it. Raises NotFound; Conflict while a sandbox has it, also asleep."""
        self._client.fetch(Call("DELETE", _path(name)))


def _path(name: str) -> str:
    return f"/volumes/{checked_id(name, 'volume')}"
