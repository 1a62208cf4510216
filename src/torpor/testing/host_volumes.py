"""The volumes of the fake host: a name and a size each. A test may take one away (`files.pop`)."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from torpor import errors
from torpor.model.capacity import MIB
from torpor.testing.host_answers import json_answer
from torpor.testing.host_files import Act
from torpor.wire import host

_TAKEN_UP = 4096


class FakeVolumes:
    """What the fake host answers about volumes. `files`: the size of each that it has, in bytes, by id."""

    def __init__(self) -> None:
        self.files: dict[str, int] = {}

    def routes(self) -> list[tuple[str, str, str, Act]]:
        """Return method, path, verb and answer of each."""
        return [
            ("POST", "/host/v1/volumes", "make_volume", self._make),
            ("GET", "/host/v1/volumes", "volumes", self._list),
            ("DELETE", "/host/v1/volumes/{id}", "remove_volume", self._remove),
        ]

    def check(self, attached: Sequence[host.Attached]) -> None:
        """Raise NotFound unless it has all of these."""
        for each in attached:
            if each.volume not in self.files:
                raise errors.NotFound(f"the file of the volume {each.volume} is not on this host")

    async def _make(self, request: Request) -> Response:
        order = host.MakeVolume.model_validate_json(await request.body())
        if order.id in self.files:
            raise errors.Conflict(f"there is a volume {order.id} already")
        self.files[order.id] = order.size_mb * MIB
        return json_answer(self._file(order.id), 201)

    async def _list(self, request: Request) -> Response:
        return json_answer(host.VolumeFiles(items=[self._file(each) for each in sorted(self.files)]))

    async def _remove(self, request: Request) -> Response:
        self.files.pop(request.path_params["id"], None)
        return Response(status_code=204)

    def _file(self, volume: str) -> host.VolumeFile:
        return host.VolumeFile(id=volume, size_bytes=self.files[volume], disk_bytes=_TAKEN_UP)
