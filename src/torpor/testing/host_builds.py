"""The fake host's builds of templates: what it was sent, and an outcome that a test chooses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from torpor import errors
from torpor.testing.host_answers import Streamed, json_answer
from torpor.testing.host_files import Act
from torpor.testing.host_machines import baked
from torpor.wire import builds, public
from torpor.wire.errors import to_body


@dataclass
class FakeBuilds:
    """Builds on the fake host. Each one says `lines`, waits until `go` is set, and makes its template, or fails.

    `files`: what each build was sent, by path, until it has run; `orders`: what was ordered, by id; `current`: the
    build that runs; `left`: those whose caller hung up. `failure`: what builds end with instead of a template.
    `reached` is set once a build has said all its lines.
    """

    templates: dict[str, public.TemplateView]
    snapshots: Container[str]
    lines: list[str] = field(default_factory=lambda: ["step 1/1: made by a fake"])
    failure: errors.TorporError | None = None
    go: asyncio.Event = field(default_factory=asyncio.Event)
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    orders: dict[str, builds.BuildOrder] = field(default_factory=dict)
    current: str | None = None
    left: list[str] = field(default_factory=list)
    room_bytes: int = builds.MAX_ARCHIVE_BYTES

    def __post_init__(self) -> None:
        self.go.set()

    def hold(self) -> None:
        """Let builds wait, from now on, between their last line and their end; `go.set()` lets them end."""
        self.go.clear()
        self.reached.clear()

    def routes(self) -> list[tuple[str, str, str, Act]]:
        """Return method, path, verb and answer of each."""
        one = "/host/v1/builds/{id}"
        return [
            ("PUT", f"{one}/files", "build_file", self._store),
            ("POST", one, "build", self._build),
            ("DELETE", one, "remove_build", self._remove),
        ]

    async def _store(self, request: Request) -> Response:
        build, path = request.path_params["id"], request.query_params.get("path", "")
        if not builds.is_file_path(path):
            raise errors.InvalidRequest(f"path: {path!r} is no path of a file of a build")
        content = await request.body()
        held = sum(len(each) for name, each in self.files.get(build, {}).items() if name != path)
        if held + len(content) > self.room_bytes:
            raise errors.OutOfSpace(f"a build may hold {self.room_bytes} bytes")
        self.files.setdefault(build, {})[path] = content
        return json_answer(builds.Stored(bytes=len(content)))

    async def _build(self, request: Request) -> Response:
        order, build = builds.BuildOrder.model_validate_json(await request.body()), request.path_params["id"]
        if self.current is not None:
            raise errors.Busy("another template is being built on this host")
        self.current = build
        self.orders[build] = order
        return Streamed(self._news(build, order), "application/x-ndjson")

    async def _news(self, build: str, order: builds.BuildOrder) -> AsyncIterator[bytes]:
        try:
            for line in self.lines:
                yield _line(builds.News(stage="running", line=line))
            yield _line(builds.News(stage="baking", line="boot from cold, then freeze"))
            self.reached.set()
            await self.go.wait()
            yield _line(self._end(build, order))
        except (GeneratorExit, asyncio.CancelledError):
            self.left.append(build)
            raise
        finally:
            self.current = None
            self.files.pop(build, None)

    def _end(self, build: str, order: builds.BuildOrder) -> builds.News:
        try:
            self._check(build, order)
        except errors.TorporError as error:
            return builds.News(stage="running", error=to_body(error))
        view = baked(order.template)
        sizes = {"cpu": order.cpu, "memory_mb": order.memory_mb, "disk_gb": order.disk_gb}
        view = view.model_copy(update={name: size for name, size in sizes.items() if size is not None})
        self.templates[order.template] = view
        return builds.News(stage="baking", template=view)

    def _check(self, build: str, order: builds.BuildOrder) -> None:
        if self.failure is not None:
            raise self.failure
        source, sent = order.source, self.files.get(build, {})
        needed = {"archive": "image.tar", "rootfs": "rootfs.tar"}.get(source.kind)
        if needed is not None and needed not in sent:
            raise errors.InvalidRequest(f"the build was sent no {needed}")
        if isinstance(source, builds.SnapshotSource) and source.snapshot not in self.snapshots:
            raise errors.NotFound(f"there is no snapshot {source.snapshot}")

    async def _remove(self, request: Request) -> Response:
        self.files.pop(request.path_params["id"], None)
        return Response(status_code=204)


def _line(news: builds.News) -> bytes:
    return news.model_dump_json().encode() + b"\n"
