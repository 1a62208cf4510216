"""The part of the host agent's interface that tells of its room, and holds some."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from torpor.host.flow.admit import reserve
from torpor.host.host import Host
from torpor.host.parsing import body_of, json_answer, sandbox_id
from torpor.model.capacity import need_of
from torpor.storage.layout import Layout
from torpor.storage.room import free_and_total
from torpor.wire.capacity import Capacity, DiskRoom, Promise
from torpor.wire.host import Reserve


def capacity_routes(host: Host, root: str) -> list[Route]:
    """Return the routes below `root`."""
    api = _Api(host)
    return [
        Route(f"{root}/capacity", api.capacity, methods=["GET"]),
        Route(f"{root}/reservations", api.reserve, methods=["POST"]),
    ]


class _Api:
    def __init__(self, host: Host) -> None:
        self._host = host

    async def capacity(self, _request: Request) -> Response:
        admission, spares = self._host.admission, self._host.spares
        limits, used = admission.limits, admission.promised()
        rooms = await asyncio.to_thread(_rooms, self._host.layout)
        return json_answer(
            Capacity(
                machines=Promise(limit=limits.machines, used=used.machines),
                memory=Promise(limit=limits.memory_bytes, used=used.memory_bytes),
                disk=Promise(limit=limits.disk_bytes, used=used.disk_bytes),
                spares=spares.needs().machines,
                rooms=rooms,
                stopped=[each.id for each in self._host.live.all() if each.starved],
            )
        )

    async def reserve(self, request: Request) -> Response:
        order = await body_of(request, Reserve)
        ids = [sandbox_id(text) for text in order.ids]
        await reserve(self._host, ids, need_of(order.memory_mb, order.disk_gb), order.for_s)
        return Response(status_code=204)


def _rooms(layout: Layout) -> list[DiskRoom]:
    places = {layout.home: layout.reserve, layout.data: layout.data_reserve}
    rooms: list[DiskRoom] = []
    for place, kept in places.items():
        free, size = free_and_total(place)
        rooms.append(DiskRoom(path=str(place), free_bytes=free, size_bytes=size, reserve_bytes=kept))
    return rooms
