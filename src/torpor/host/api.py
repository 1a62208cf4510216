"""The host agent's side of the wire: `wire/host.py`, served as an ASGI application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import TypeVar

import structlog
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from torpor.errors import InvalidRequest, NotFound, OutcomeUnknown, TorporError
from torpor.host.flow.ask import guest_of
from torpor.host.flow.create import Source, create
from torpor.host.flow.delete import delete
from torpor.host.flow.freeze import FreezeOrder
from torpor.host.flow.hibernate import hibernate
from torpor.host.flow.pause import pause, resume
from torpor.host.flow.rollback import rollback
from torpor.host.flow.snapshot import snapshot
from torpor.host.flow.wake import wake
from torpor.host.host import Host
from torpor.host.streaming import Stream
from torpor.host.views import damaged_view, incarnation_view, sleeper_view, snapshot_view, template_view
from torpor.model.ids import SandboxId, SnapshotId, TemplateName, is_sandbox_id, is_snapshot_id
from torpor.model.snapshot import Kind as SnapshotKind
from torpor.vmm.bounded_log import read_log
from torpor.wire import frames
from torpor.wire.errors import status_of, to_body
from torpor.wire.frames import Frame, Kind
from torpor.wire.host import HOST_API_VERSION, ExecOrder, Freeze, FrozenList, IncarnationList, Restore, Rollback
from torpor.wire.public import DirListing, Rename, TemplateList, Verified, Written

_log = structlog.get_logger(__name__)
M = TypeVar("M", bound=BaseModel)
# Requests carry at most a command's stdin in base64, and some names.
_MAX_BODY_BYTES = 32 * 1024 * 1024


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
        Route(f"{one}/pause", api.pause, methods=["POST"]),
        Route(f"{one}/resume", api.resume, methods=["POST"]),
        Route(f"{one}/hibernate", api.hibernate, methods=["POST"]),
        Route(f"{one}/wake", api.wake, methods=["POST"]),
        Route(f"{one}/snapshots", api.snapshot, methods=["POST"]),
        Route(f"{one}/rollback", api.rollback, methods=["POST"]),
        Route(f"{one}/exec", api.execute, methods=["POST"]),
        Route(f"{one}/logs", api.logs, methods=["GET"]),
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
        damaged = [damaged_view(sandbox, reason) for sandbox, reason in live.damaged.items()]
        return _json(IncarnationList(items=awake + asleep + damaged))

    async def create(self, request: Request) -> Response:
        order = await _body(request, Restore)
        sandbox = _sandbox_id(order.id)
        source = Source(
            template=None if order.template is None else TemplateName(order.template),
            snapshot=None if order.snapshot is None else _snapshot_id(order.snapshot),
            sleeper=None if order.sleeper is None else _sandbox_id(order.sleeper),
            env=order.env,
        )
        return _json(incarnation_view(await create(self._host, sandbox, source)), status=201)

    async def delete(self, request: Request) -> Response:
        await delete(self._host, _sandbox(request))
        return Response(status_code=204)

    async def pause(self, request: Request) -> Response:
        await pause(self._host, _sandbox(request))
        return Response(status_code=204)

    async def resume(self, request: Request) -> Response:
        await resume(self._host, _sandbox(request))
        return Response(status_code=204)

    async def hibernate(self, request: Request) -> Response:
        order = _freeze_order(await _body(request, Freeze))
        return _json(snapshot_view(await hibernate(self._host, _sandbox(request), order)))

    async def wake(self, request: Request) -> Response:
        return _json(incarnation_view(await wake(self._host, _sandbox(request))))

    async def snapshot(self, request: Request) -> Response:
        order = _freeze_order(await _body(request, Freeze))
        return _json(snapshot_view(await snapshot(self._host, _sandbox(request), order)), status=201)

    async def rollback(self, request: Request) -> Response:
        wanted = _snapshot_id((await _body(request, Rollback)).snapshot)
        return _json(incarnation_view(await rollback(self._host, _sandbox(request), wanted)))

    async def snapshots(self, _request: Request) -> Response:
        there = await asyncio.to_thread(self._host.snapshots.names)
        read = await asyncio.to_thread(self._host.snapshots.all)
        readable = {each.id for each in read}
        unreadable: list[str] = [one for one in there if one not in readable]
        return _json(FrozenList(items=[snapshot_view(each) for each in read], unreadable=unreadable))

    async def remove_snapshot(self, request: Request) -> Response:
        await asyncio.to_thread(self._host.snapshots.remove, _snapshot_id(request.path_params["id"]))
        return Response(status_code=204)

    async def verify(self, request: Request) -> Response:
        wanted, began = _snapshot_id(request.path_params["id"]), time.monotonic()
        checked = await asyncio.to_thread(self._host.snapshots.verify, wanted)
        took_ms = round((time.monotonic() - began) * 1000, 1)
        return _json(Verified(id=wanted, checked_bytes=checked, took_ms=took_ms))

    async def execute(self, request: Request) -> Response:
        order = await _body(request, ExecOrder)
        return Stream(self._output(_sandbox(request), order), frames.MEDIA_TYPE)

    async def _output(self, sandbox: SandboxId, order: ExecOrder) -> AsyncGenerator[bytes, None]:
        begun = False
        try:
            async with guest_of(self._host, sandbox) as guest, guest.exec(order) as output:
                async for frame in output:
                    begun = True
                    yield frames.encode(frame)
        except TorporError as error:
            if not begun:  # the answer's status can still say it
                raise
            yield frames.encode(Frame(Kind.ERROR, to_body(error).model_dump_json().encode()))

    async def logs(self, request: Request) -> Response:
        return PlainTextResponse(read_log(self._host.live.place_of(_sandbox(request)).console))

    async def read(self, request: Request) -> Response:
        content = self._content(_sandbox(request), _path(request), request.query_params.get("user"))
        return Stream(content, "application/octet-stream")

    async def _content(self, sandbox: SandboxId, path: str, user: str | None) -> AsyncGenerator[bytes, None]:
        async with guest_of(self._host, sandbox) as guest, guest.read(path, user=user) as chunks:
            async for chunk in chunks:
                yield chunk

    async def write(self, request: Request) -> Response:
        query, path = request.query_params, _path(request)
        async with guest_of(self._host, _sandbox(request)) as guest:
            written = await guest.write(
                path, request.stream(), mode=_mode(request), user=query.get("user"), append=_flag(request, "append")
            )
        return _json(Written(path=path, bytes=written))

    async def remove(self, request: Request) -> Response:
        async with guest_of(self._host, _sandbox(request)) as guest:
            await guest.remove(_path(request), recursive=_flag(request, "recursive"))
        return Response(status_code=204)

    async def stat(self, request: Request) -> Response:
        async with guest_of(self._host, _sandbox(request)) as guest:
            return _json(await guest.stat(_path(request)))

    async def list_folder(self, request: Request) -> Response:
        async with guest_of(self._host, _sandbox(request)) as guest:
            return _json(DirListing(entries=await guest.list(_path(request))))

    async def make_folder(self, request: Request) -> Response:
        user = request.query_params.get("user")
        async with guest_of(self._host, _sandbox(request)) as guest:
            await guest.mkdir(_path(request), mode=_mode(request), user=user)
        return Response(status_code=204)

    async def rename(self, request: Request) -> Response:
        order = await _body(request, Rename)
        async with guest_of(self._host, _sandbox(request)) as guest:
            await guest.rename(order.source, order.target)
        return Response(status_code=204)

    async def walk(self, request: Request) -> Response:
        return Stream(self._entries(_sandbox(request), _path(request)), "application/x-ndjson")

    async def _entries(self, sandbox: SandboxId, path: str) -> AsyncGenerator[bytes, None]:
        async with guest_of(self._host, sandbox) as guest, guest.walk(path) as entries:
            async for entry in entries:
                yield entry.model_dump_json().encode() + b"\n"

    async def templates(self, _request: Request) -> Response:
        return _json(TemplateList(items=[template_view(each) for each in self._host.templates.all()]))

    async def remove_template(self, request: Request) -> Response:
        name = TemplateName(request.path_params["name"])
        self._host.templates.remove(name)
        await self._host.spares.drop(name)
        return Response(status_code=204)


def _json(model: BaseModel, status: int = 200) -> Response:
    return Response(model.model_dump_json(), status_code=status, media_type="application/json")


async def _body(request: Request, model: type[M]) -> M:
    held = bytearray()
    async for chunk in request.stream():
        held += chunk
        if len(held) > _MAX_BODY_BYTES:
            raise InvalidRequest(f"the request is larger than {_MAX_BODY_BYTES} bytes")
    try:
        return model.model_validate_json(bytes(held))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the request"
        raise InvalidRequest(f"{field}: {first['msg']}") from error


def _sandbox(request: Request) -> SandboxId:
    return _sandbox_id(request.path_params["id"])


def _sandbox_id(text: str) -> SandboxId:
    # The id becomes a folder's name on this host, so its form is checked here too.
    if not is_sandbox_id(text):
        raise NotFound(f"there is no sandbox {text!r}")
    return SandboxId(text)


def _snapshot_id(text: str) -> SnapshotId:
    # It names a folder too.
    if not is_snapshot_id(text):
        raise NotFound(f"there is no snapshot {text!r}")
    return SnapshotId(text)


def _freeze_order(order: Freeze) -> FreezeOrder:
    return FreezeOrder(_snapshot_id(order.id), SnapshotKind(order.kind), order.name)


def _path(request: Request) -> str:
    return request.query_params.get("path", "")


def _flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "false") in {"true", "1"}


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
