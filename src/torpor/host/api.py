"""The host agent's side of the wire: `wire/host.py`, served as an ASGI application."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from torpor.errors import InvalidRequest, NotFound, OutcomeUnknown, TorporError
from torpor.host.builds_api import build_routes
from torpor.host.capacity_api import capacity_routes
from torpor.host.flow.ask import guest_of
from torpor.host.flow.create import Source, create
from torpor.host.flow.deadline import set_deadline
from torpor.host.flow.delete import delete
from torpor.host.flow.freeze import FreezeOrder
from torpor.host.flow.hibernate import hibernate
from torpor.host.flow.pause import pause, resume
from torpor.host.flow.rollback import Changes, rollback
from torpor.host.flow.snapshot import snapshot
from torpor.host.flow.wake import wake
from torpor.host.host import Host
from torpor.host.jobs_api import job_routes
from torpor.host.network_api import network_routes, told_egress
from torpor.host.parsing import body_of, flag, json_answer, sandbox_id, sandbox_of
from torpor.host.ports_api import port_routes
from torpor.host.streaming import Stream
from torpor.host.views import (
    damaged_view,
    incarnation_view,
    sleeper_view,
    snapshot_view,
    template_view,
    unreachable_view,
    usage_view,
)
from torpor.host.volumes_api import told_volumes, volume_id, volume_routes
from torpor.model.ids import SandboxId, SnapshotId, TemplateName, is_snapshot_id
from torpor.model.network import NO_NETWORK
from torpor.model.snapshot import Kind as SnapshotKind
from torpor.storage.volume import ensure_room
from torpor.vmm.bounded_log import read_log, read_log_after
from torpor.wire.errors import status_of, to_body
from torpor.wire.host import (
    HOST_API_VERSION,
    Closed,
    Deadline,
    Freeze,
    FrozenList,
    IncarnationList,
    Restore,
    Rollback,
    Wake,
)
from torpor.wire.logs import LogPart
from torpor.wire.public import DirListing, Rename, TemplateList, Verified, Written

_log = structlog.get_logger(__name__)


def host_app(host: Host) -> Starlette:
    """Return the application that answers `/host/v1` for this host."""
    api = _Api(host)
    root = f"/host/{HOST_API_VERSION}"
    every, templates, snapshots = f"{root}/incarnations", f"{root}/templates", f"{root}/snapshots"
    one = f"{every}/{{id}}"
    fs = f"{one}/fs"
    routes = [
        Route(every, api.list_all, methods=["GET"]),
        Route(every, api.create, methods=["POST"]),
        Route(one, api.delete, methods=["DELETE"]),
        Route(f"{one}/deadline", api.deadline, methods=["PUT"]),
        Route(f"{one}/pause", api.pause, methods=["POST"]),
        Route(f"{one}/resume", api.resume, methods=["POST"]),
        Route(f"{one}/hibernate", api.hibernate, methods=["POST"]),
        Route(f"{one}/wake", api.wake, methods=["POST"]),
        Route(f"{one}/snapshots", api.snapshot, methods=["POST"]),
        Route(f"{one}/rollback", api.rollback, methods=["POST"]),
        *job_routes(host, one),
        *capacity_routes(host, root),
        *build_routes(host, root),
        *network_routes(host, root),
        *port_routes(host, one),
        *volume_routes(host, root),
        Route(f"{one}/logs", api.logs, methods=["GET"]),
        Route(f"{one}/logs/part", api.log_part, methods=["GET"]),
        Route(fs, api.read, methods=["GET"]),
        Route(fs, api.write, methods=["PUT"]),
        Route(fs, api.remove, methods=["DELETE"]),
        Route(f"{fs}/stat", api.stat, methods=["GET"]),
        Route(f"{fs}/dir", api.list_folder, methods=["GET"]),
        Route(f"{fs}/dir", api.make_folder, methods=["POST"]),
        Route(f"{fs}/rename", api.rename, methods=["POST"]),
        Route(f"{fs}/walk", api.walk, methods=["GET"]),
        Route(snapshots, api.snapshots, methods=["GET"]),
        Route(f"{snapshots}/{{id}}", api.remove_snapshot, methods=["DELETE"]),
        Route(f"{snapshots}/{{id}}/verify", api.verify, methods=["POST"]),
        Route(templates, api.templates, methods=["GET"]),
        Route(f"{templates}/{{name}}", api.remove_template, methods=["DELETE"]),
    ]
    return Starlette(routes=routes, exception_handlers={TorporError: _error, Exception: _error})


async def _error(request: Request, error: Exception) -> Response:
    if not isinstance(error, TorporError):
        _log.error("a request failed in a way nobody foresaw", path=request.url.path, exc_info=error)
        error = OutcomeUnknown("the host agent failed in a way it does not know", hint="see the server's log")
    return JSONResponse(to_body(error).model_dump(), status_code=status_of(error))


class _Api:
    """One method per row of the table in `wire/host.py`."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def list_all(self, _request: Request) -> Response:
        live = self._host.live
        awake = [incarnation_view(each) for each in live.all()]
        asleep = [sleeper_view(each) for each in live.sleepers()]
        out_of_reach = [unreachable_view(each) for each in live.out_of_reach()]
        damaged = [damaged_view(sandbox, reason) for sandbox, reason in live.damaged.items()]
        return json_answer(IncarnationList(items=awake + asleep + out_of_reach + damaged))

    async def create(self, request: Request) -> Response:
        order = await body_of(request, Restore)
        sandbox = sandbox_id(order.id)
        source = Source(
            template=None if order.template is None else TemplateName(order.template),
            snapshot=None if order.snapshot is None else _snapshot_id(order.snapshot),
            sleeper=None if order.sleeper is None else sandbox_id(order.sleeper),
            env=order.env,
            secrets=order.secrets,
            deadline=order.deadline,
            egress=told_egress(order.network) or NO_NETWORK,
            volumes=told_volumes(order.volumes),
        )
        return json_answer(incarnation_view(await create(self._host, sandbox, source)), status=201)

    async def delete(self, request: Request) -> Response:
        used = await delete(self._host, sandbox_of(request))
        return json_answer(Closed(usage=None if used is None else usage_view(used)))

    async def deadline(self, request: Request) -> Response:
        order = await body_of(request, Deadline)
        await set_deadline(self._host, sandbox_of(request), order.deadline)
        return Response(status_code=204)

    async def pause(self, request: Request) -> Response:
        await pause(self._host, sandbox_of(request))
        return Response(status_code=204)

    async def resume(self, request: Request) -> Response:
        await resume(self._host, sandbox_of(request))
        return Response(status_code=204)

    async def hibernate(self, request: Request) -> Response:
        order = _freeze_order(await body_of(request, Freeze))
        sandbox = sandbox_of(request)
        taken = await hibernate(self._host, sandbox, order)
        return json_answer(snapshot_view(taken, self._host.live.usage_of(sandbox)))

    async def wake(self, request: Request) -> Response:
        order = await body_of(request, Wake)
        return json_answer(incarnation_view(await wake(self._host, sandbox_of(request), told_egress(order.network))))

    async def snapshot(self, request: Request) -> Response:
        order = _freeze_order(await body_of(request, Freeze))
        sandbox = sandbox_of(request)
        taken = await snapshot(self._host, sandbox, order)
        return json_answer(snapshot_view(taken, self._host.live.usage_of(sandbox)), status=201)

    async def rollback(self, request: Request) -> Response:
        order, sandbox = await body_of(request, Rollback), sandbox_of(request)
        wanted = _snapshot_id(order.snapshot)
        volumes = frozenset(volume_id(each) for each in order.volumes)
        changes = Changes(order.secrets, told_egress(order.network), volumes)
        return json_answer(incarnation_view(await rollback(self._host, sandbox, wanted, changes)))

    async def snapshots(self, _request: Request) -> Response:
        there = await asyncio.to_thread(self._host.snapshots.names)
        read = await asyncio.to_thread(self._host.snapshots.all)
        readable = {each.id for each in read}
        unreadable: list[str] = [one for one in there if one not in readable]
        return json_answer(FrozenList(items=[snapshot_view(each) for each in read], unreadable=unreadable))

    async def remove_snapshot(self, request: Request) -> Response:
        await asyncio.to_thread(self._host.snapshots.remove, _snapshot_id(request.path_params["id"]))
        return Response(status_code=204)

    async def verify(self, request: Request) -> Response:
        wanted, began = _snapshot_id(request.path_params["id"]), time.monotonic()
        checked = await asyncio.to_thread(self._host.snapshots.verify, wanted)
        took_ms = round((time.monotonic() - began) * 1000, 1)
        return json_answer(Verified(id=wanted, checked_bytes=checked, took_ms=took_ms))

    async def logs(self, request: Request) -> Response:
        return PlainTextResponse(read_log(self._host.live.place_of(sandbox_of(request)).console))

    async def log_part(self, request: Request) -> Response:
        console = self._host.live.place_of(sandbox_of(request)).console
        data, position = read_log_after(console, request.query_params.get("after", ""))
        return json_answer(LogPart(position=position, data=base64.b64encode(data)))

    async def read(self, request: Request) -> Response:
        content = self._content(sandbox_of(request), _path(request), request.query_params.get("user"))
        return Stream(content, "application/octet-stream")

    async def _content(self, sandbox: SandboxId, path: str, user: str | None) -> AsyncGenerator[bytes, None]:
        async with guest_of(self._host, sandbox) as guest, guest.read(path, user=user) as chunks:
            async for chunk in chunks:
                yield chunk

    async def write(self, request: Request) -> Response:
        query, path = request.query_params, _path(request)
        await asyncio.to_thread(ensure_room, self._host.layout, 0)
        async with guest_of(self._host, sandbox_of(request)) as guest:
            written = await guest.write(
                path, request.stream(), mode=_mode(request), user=query.get("user"), append=flag(request, "append")
            )
        return json_answer(Written(path=path, bytes=written))

    async def remove(self, request: Request) -> Response:
        async with guest_of(self._host, sandbox_of(request)) as guest:
            await guest.remove(_path(request), recursive=flag(request, "recursive"))
        return Response(status_code=204)

    async def stat(self, request: Request) -> Response:
        async with guest_of(self._host, sandbox_of(request)) as guest:
            return json_answer(await guest.stat(_path(request)))

    async def list_folder(self, request: Request) -> Response:
        async with guest_of(self._host, sandbox_of(request)) as guest:
            return json_answer(DirListing(entries=await guest.list(_path(request))))

    async def make_folder(self, request: Request) -> Response:
        user = request.query_params.get("user")
        async with guest_of(self._host, sandbox_of(request)) as guest:
            await guest.mkdir(_path(request), mode=_mode(request), user=user)
        return Response(status_code=204)

    async def rename(self, request: Request) -> Response:
        order = await body_of(request, Rename)
        async with guest_of(self._host, sandbox_of(request)) as guest:
            await guest.rename(order.source, order.target)
        return Response(status_code=204)

    async def walk(self, request: Request) -> Response:
        return Stream(self._entries(sandbox_of(request), _path(request)), "application/x-ndjson")

    async def _entries(self, sandbox: SandboxId, path: str) -> AsyncGenerator[bytes, None]:
        async with guest_of(self._host, sandbox) as guest, guest.walk(path) as entries:
            async for entry in entries:
                yield entry.model_dump_json().encode() + b"\n"

    async def templates(self, _request: Request) -> Response:
        return json_answer(TemplateList(items=[template_view(each) for each in self._host.templates.all()]))

    async def remove_template(self, request: Request) -> Response:
        name = TemplateName(request.path_params["name"])
        self._host.templates.remove(name)
        await self._host.spares.drop(name)
        return Response(status_code=204)


def _snapshot_id(text: str) -> SnapshotId:
    # It names a folder too.
    if not is_snapshot_id(text):
        raise NotFound(f"there is no snapshot {text!r}")
    return SnapshotId(text)


def _freeze_order(order: Freeze) -> FreezeOrder:
    return FreezeOrder(_snapshot_id(order.id), SnapshotKind(order.kind), order.name)


def _path(request: Request) -> str:
    return request.query_params.get("path", "")


def _mode(request: Request) -> int | None:
    text = request.query_params.get("mode")
    if text is None:
        return None
    try:
        mode = int(text, 8)
    except ValueError as error:
        raise InvalidRequest(f"mode: {text!r} is not an octal number such as 640") from error
    if not 0 <= mode <= 0o7777:
        raise InvalidRequest(f"mode: {text!r} is beyond 7777")
    return mode
