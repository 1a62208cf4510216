"""The part of the host agent's interface that has to do with builds of templates: `wire/builds.py`."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AbstractAsyncContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from torpor.errors import Busy, Conflict, Failed, InvalidRequest, NotFound, OutcomeUnknown, OutOfSpace, TorporError
from torpor.host.admission import need_of_machine
from torpor.host.bake import bake, check, clear_up, log_of, the_only_bake
from torpor.host.building.workshop import BuildEvent, Workshop
from torpor.host.flow.admit import admitted
from torpor.host.host import Host
from torpor.host.parsing import body_of, json_answer
from torpor.host.streaming import Stream
from torpor.host.views import template_view
from torpor.kit.environment import positive
from torpor.kit.files import is_full, remove_tree
from torpor.kit.shielded import end_tasks, shielded
from torpor.model.builds import is_private
from torpor.model.ids import SandboxId, TemplateName, is_build_id
from torpor.model.template import Template
from torpor.storage.layout import Layout
from torpor.storage.room import MIB, demand_room, out_of_space
from torpor.wire.builds import (
    MAX_ARCHIVE_BYTES,
    MAX_CONTEXT_BYTES,
    MAX_CONTEXT_FILES,
    BuildOrder,
    News,
    Stored,
    is_file_path,
)
from torpor.wire.errors import to_body

_log = structlog.get_logger(__name__)

# How many lines wait for whoever reads them; then the build's commands do.
_LINES_AHEAD = 1000
# The disk's room is looked at once for so many bytes.
_ROOM_BYTES = 16 * MIB
# A build may take so long, unless another time is set; and so often it is looked whether it still may go on.
_USUAL_MINUTES, _MINUTE_S = 120, 60.0
_LOOK_EVERY_S = 1.0
_LONGER = "the operator of the host can allow more with TORPOR_BUILD_MINUTES"
# Logs of builds of workspaces' templates, each of which has a name of its own.
_LOGS_KEPT = 100
# A step that took so long tells how long, in seconds.
_WORTH_TELLING_S = 1.0


def build_routes(host: Host, root: str) -> list[Route]:
    """Return the routes below `root`."""
    api = _Api(host)
    one = f"{root}/builds/{{id}}"
    return [
        Route(f"{one}/files", api.store, methods=["PUT"]),
        Route(one, api.build, methods=["POST"]),
        Route(one, api.remove, methods=["DELETE"]),
    ]


async def sweep_builds(layout: Layout) -> None:
    """Remove what an earlier host agent has left of builds, unless a bake runs beside us."""
    for entry in layout.builds.iterdir():
        remove_tree(entry)
    try:
        with the_only_bake(layout):
            await clear_up(layout)
    except Busy:
        _log.info("a bake runs in this data directory")


class _Sent:
    """What was sent for one build: the size of each file, by path."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}

    def room(self, path: str) -> int:
        """Return how large a file may be beside the others. Raises OutOfSpace if there are too many."""
        if not path.startswith("context/"):
            return MAX_ARCHIVE_BYTES
        others = [size for name, size in self.sizes.items() if name != path and name.startswith("context/")]
        if len(others) >= MAX_CONTEXT_FILES:
            raise OutOfSpace(f"a build context has at most {MAX_CONTEXT_FILES} files")
        return MAX_CONTEXT_BYTES - sum(others)


class _Api:
    """One method per row of the table in `wire/builds.py`."""

    def __init__(self, host: Host) -> None:
        self._host, self._folder = host, host.layout.builds
        self._sent: dict[str, _Sent] = {}
        self._running: str | None = None
        self._minutes = positive("TORPOR_BUILD_MINUTES", _USUAL_MINUTES)

    async def store(self, request: Request) -> Response:
        build, path = _build_id(request), request.query_params.get("path", "")
        if not is_file_path(path):
            raise InvalidRequest(f"path: {path[:200]!r} is no path of a file of a build")
        if build == self._running:
            raise Conflict(f"the build {build} runs already")
        sent, mode = self._sent.setdefault(build, _Sent()), _mode(request)
        sent.sizes[path] = 0  # so that it counts among those that come at the same time
        try:
            size = await self._receive(request, self._folder / build / path, sent.room(path), mode)
        except BaseException:
            sent.sizes.pop(path, None)
            raise
        sent.sizes[path] = size
        return json_answer(Stored(bytes=size))

    async def _receive(self, request: Request, target: Path, most: int, mode: int) -> int:
        """Write a file as it comes. It is there whole, or not at all."""
        try:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if target.is_dir():
                raise InvalidRequest("path: there is a folder of that name")
        except (FileExistsError, NotADirectoryError) as error:
            raise InvalidRequest("path: a file is in the way of one of its folders") from error
        except OSError as error:
            raise InvalidRequest(f"path: it cannot be a file here: {error.strerror}") from error
        draft = self._folder / f".draft-{secrets.token_hex(8)}"
        try:
            size = await self._write(request, draft, most)
            draft.chmod(mode)
            draft.replace(target)
        except OSError as error:
            if is_full(error):
                raise out_of_space(self._folder) from error
            raise
        finally:
            draft.unlink(missing_ok=True)
        return size

    async def _write(self, request: Request, draft: Path, most: int) -> int:
        layout, size, looked = self._host.layout, 0, -_ROOM_BYTES
        with draft.open("xb") as file:
            async for chunk in request.stream():
                if size - looked >= _ROOM_BYTES:
                    demand_room(layout.home, _ROOM_BYTES, layout.reserve)
                    looked = size
                size += len(chunk)
                if size > most:
                    raise OutOfSpace(f"it is too large: a build may have {most} bytes more of such files")
                file.write(chunk)
        return size

    async def build(self, request: Request) -> Response:
        build, order = _build_id(request), await body_of(request, BuildOrder)
        check(order)
        return Stream(self._news(build, order), "application/x-ndjson")

    async def _news(self, build: str, order: BuildOrder) -> AsyncGenerator[bytes, None]:
        """Build, and yield what is new as lines. Raises Busy, before anything is done, if another one runs."""
        if self._running is not None:
            raise Busy("another template is being built on this host")
        with ExitStack() as undo:
            undo.enter_context(the_only_bake(self._host.layout))
            self._running = build
            undo.callback(self._forget, build)
            teller = _Teller()
            making = asyncio.create_task(self._make(build, order, teller))
            try:
                while (line := await teller.next()) is not None:
                    yield line
            finally:
                await end_tasks(making)
                await shielded(asyncio.to_thread(remove_tree, self._folder / build))

    async def _make(self, build: str, order: BuildOrder, teller: _Teller) -> None:
        """Make the template, and tell how it went."""
        host = self._host
        try:
            await clear_up(host.layout)
            shop = Workshop(
                host.layout,
                host.preparer.vmm,
                log_of(host.layout, order.template),
                network=host.preparer.network,
                admit=partial(self._admit, build),
                report=teller.report,
                say=teller.say,
                files=self._folder / build,
                again=order.force,
            )
            template = await self._bounded(bake(shop, order))
            await host.spares.drop(TemplateName(order.template))
            teller.tell(News(stage=teller.stage, template=template_view(template)))
        except TorporError as error:
            teller.tell(News(stage=teller.stage, error=to_body(error)))
        except Exception as error:
            _log.error("a build failed in a way nobody foresaw", build=build, exc_info=error)
            unknown = OutcomeUnknown("the host agent failed in a way it does not know", hint="see the server's log")
            teller.tell(News(stage=teller.stage, error=to_body(unknown)))
        finally:
            teller.end()
            _drop_old_logs(host.layout)

    async def _bounded(self, making: Coroutine[Any, Any, Template]) -> Template:
        """Return what a build makes, unless it takes too long, or too much of the host's disk: Failed, OutOfSpace.

        What strangers have it run or fetch need never end, nor fit.
        """
        layout, began = self._host.layout, time.monotonic()
        task = asyncio.create_task(making)
        try:
            while not (await asyncio.wait([task], timeout=_LOOK_EVERY_S))[0]:
                demand_room(layout.home, 0, layout.reserve)
                if time.monotonic() - began >= self._minutes * _MINUTE_S:
                    raise Failed(f"the build has not ended within {self._minutes} minutes, the most", hint=_LONGER)
            return task.result()
        finally:
            await end_tasks(task)

    def _admit(self, build: str, template: Template) -> AbstractAsyncContextManager[None]:
        return admitted(self._host, SandboxId(build), need_of_machine(template))

    def _forget(self, build: str) -> None:
        self._running = None
        self._sent.pop(build, None)

    async def remove(self, request: Request) -> Response:
        build = _build_id(request)
        if build == self._running:
            raise Conflict(f"the build {build} runs", hint="hang up on it")
        self._sent.pop(build, None)
        await shielded(asyncio.to_thread(remove_tree, self._folder / build))
        return Response(status_code=204)


class _Teller:
    """What is new of a build, until somebody reads it. Whoever says something waits while too much is unread."""

    def __init__(self) -> None:
        self.stage: Literal["running", "baking"] = "running"
        self._unread: asyncio.Queue[tuple[News | None, bool]] = asyncio.Queue()
        self._room = asyncio.Semaphore(_LINES_AHEAD)

    def report(self, event: BuildEvent) -> None:
        """Take the beginning or the end of a step."""
        if event.step == "snapshot":
            self.stage = "baking"
        if not event.done:
            self.tell(News(stage=self.stage, line=f"{event.step}: {event.detail}"))
        elif event.elapsed_s >= _WORTH_TELLING_S:
            self.tell(News(stage=self.stage, line=f"{event.step}: done in {event.elapsed_s:.1f} s"))

    async def say(self, line: str) -> None:
        """Take a line of the build's output."""
        await self._room.acquire()
        self._unread.put_nowait((News(stage=self.stage, line=line), True))

    def tell(self, news: News) -> None:
        """Take what is new otherwise, of which there is little."""
        self._unread.put_nowait((news, False))

    def end(self) -> None:
        """Say no more."""
        self._unread.put_nowait((None, False))

    async def next(self) -> bytes | None:
        """Return the next line of the answer, None at its end."""
        news, counted = await self._unread.get()
        if counted:
            self._room.release()
        return None if news is None else news.model_dump_json().encode() + b"\n"


def _drop_old_logs(layout: Layout) -> None:
    """Remove the logs of workspaces' builds but for the newest, as no later build of the name replaces them."""
    before, _, after = log_of(layout, "*").name.partition("*")
    logs = [path for path in layout.logs.glob(f"{before}*{after}") if is_private(path.name.removeprefix(before))]
    for old in sorted(logs, key=lambda path: path.stat().st_mtime)[:-_LOGS_KEPT]:
        old.unlink(missing_ok=True)


def _build_id(request: Request) -> str:
    build: str = request.path_params["id"]
    if not is_build_id(build):  # it names a folder too
        raise NotFound(f"there is no build {build[:100]!r}")
    return build


def _mode(request: Request) -> int:
    text = request.headers.get("x-file-mode", "644")
    try:
        mode = int(text, 8)
    except ValueError as error:
        raise InvalidRequest(f"X-File-Mode: {text[:20]!r} is not an octal number such as 755") from error
    return (mode & 0o777) | 0o400
