"""The part of the host agent's interface that has to do with volumes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from torpor.errors import Conflict, NotFound
from torpor.host.host import Host
from torpor.host.parsing import body_of, json_answer
from torpor.model.capacity import MIB
from torpor.model.ids import VolumeId, is_volume_id
from torpor.model.volume import Attachment
from torpor.storage.named_volumes import VolumeFile
from torpor.wire import host as wire
from torpor.wire.host import Attached, MakeVolume, VolumeFiles


def volume_routes(host: Host, root: str) -> list[Route]:
    """Return the routes below `root`."""
    api = _Api(host)
    return [
        Route(f"{root}/volumes", api.list_all, methods=["GET"]),
        Route(f"{root}/volumes", api.make, methods=["POST"]),
        Route(f"{root}/volumes/{{id}}", api.remove, methods=["DELETE"]),
    ]


def told_volumes(attached: Sequence[Attached]) -> tuple[Attachment, ...]:
    """Return the volumes that a request names. Raises NotFound for what is no volume's id."""
    return tuple(Attachment(**each.model_dump() | {"volume": volume_id(each.volume)}) for each in attached)


def volume_id(text: str) -> VolumeId:
    """Return a text as a volume's id. Raises NotFound if it has not its form: it names a file on this host."""
    if not is_volume_id(text):
        raise NotFound(f"there is no volume {text!r}")
    return VolumeId(text)


class _Api:
    def __init__(self, host: Host) -> None:
        self._host = host

    async def list_all(self, _request: Request) -> Response:
        found = await asyncio.to_thread(self._host.volumes.all)
        return json_answer(VolumeFiles(items=[_view(each) for each in found]))

    async def make(self, request: Request) -> Response:
        order = await body_of(request, MakeVolume)
        with self._host.admission.room_for_volume(order.size_mb * MIB):
            made = await self._host.volumes.make(volume_id(order.id), order.size_mb)
        return json_answer(_view(made), status=201)

    async def remove(self, request: Request) -> Response:
        volume = volume_id(request.path_params["id"])
        for each in self._host.live.everything():
            if any(one.volume == volume and one.writes for one in each.volumes):
                raise Conflict(f"the sandbox {each.id} writes to the volume {volume}", hint="delete it first")
        await asyncio.to_thread(self._host.volumes.remove, volume)
        return Response(status_code=204)


def _view(file: VolumeFile) -> wire.VolumeFile:
    return wire.VolumeFile(id=file.id, size_bytes=file.size_bytes, disk_bytes=file.disk_bytes)
