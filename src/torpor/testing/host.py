"""A host agent that exists in memory only, for whoever needs the other end of `torpor.wire.host`.

It can be told to misbehave: refuse (`fail`), do the work and lose the answer (`lose_answer`), wait (`hold`), not be
there (`down`), lose a machine (`die`), forget one (`vanish`).
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from torpor import errors
from torpor.kit.clock import Clock, SystemClock
from torpor.kit.shielded import wait_ended
from torpor.testing.guest import Call, Files, Killed, Shell
from torpor.wire import frames, host, public
from torpor.wire.errors import ErrorBody, status_of, to_body
from torpor.wire.memory import MemoryTransport


@dataclass
class FakeMachine:
    """One sandbox of the fake host. `died`: its machine is dead; `killed`: the commands that were cut off."""

    facts: host.Incarnation
    files: Files
    env: dict[str, str]
    died: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    killed: asyncio.Queue[list[str]] = field(default_factory=asyncio.Queue)


@dataclass(frozen=True)
class Hold:
    """A request that waits: `reached` is set when it has come, and it goes on after `release`."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        """Let the request go on."""
        self.go.set()


class FakeHost:
    """An ASGI application with the host's interface. Verbs, for `fail`, `lose_answer`, `hold` and `calls`:

    restore, list, close, exec, read, write, remove, stat, dir, mkdir, rename, walk, logs, templates, remove_template.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.machines: dict[str, FakeMachine] = {}
        self.templates = {name: _template(name) for name in ("base", "agent")}
        self.down = False
        self.calls: Counter[str] = Counter()
        self._failures: dict[str, deque[errors.TorporError]] = defaultdict(deque)
        self._lost: Counter[str] = Counter()
        self._holds: dict[str, deque[Hold]] = defaultdict(deque)
        self._pids = itertools.count(1000)
        self._app = Starlette(routes=list(self._routes()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def transport(self) -> httpx2.AsyncBaseTransport:
        """Return a transport whose requests come here, or fail to connect while `down`."""
        return _Line(self)

    def fail(self, verb: str, error: errors.TorporError, times: int = 1) -> None:
        """Answer the next `times` requests of a verb with an error and do nothing."""
        self._failures[verb].extend([error] * times)

    def lose_answer(self, verb: str, times: int = 1) -> None:
        """Do what the next `times` requests of a verb ask, and break off instead of answering."""
        self._lost[verb] += times

    def hold(self, verb: str) -> Hold:
        """Make the next request of a verb wait, before anything is done."""
        hold = Hold()
        self._holds[verb].append(hold)
        return hold

    def die(self, sandbox_id: str, reason: str = "the machine process ended") -> None:
        """Let a machine die: its commands end with an error, and it is listed as not alive."""
        machine = self.machines[sandbox_id]
        machine.facts = machine.facts.model_copy(update={"alive": False, "reason": reason})
        machine.died.set()

    def vanish(self, sandbox_id: str) -> None:
        """Forget a machine altogether, as a host does that was set up anew."""
        self.machines.pop(sandbox_id).died.set()

    def begin(self, sandbox_id: str, template: str = "base") -> FakeMachine:
        """Bring a machine to life without having been asked, and return it."""
        size = self.templates[template]
        facts = host.Incarnation(
            id=sandbox_id,
            template=template,
            cpu=size.cpu,
            memory_mb=size.memory_mb,
            disk_gb=size.disk_gb,
            boot_ms=90,
            pid=next(self._pids),
        )
        self.machines[sandbox_id] = FakeMachine(facts, Files(self.clock), {})
        return self.machines[sandbox_id]

    def _routes(self) -> list[Route]:
        top, one = "/host/v1/incarnations", "/host/v1/incarnations/{id}"
        table: list[tuple[str, str, str, Callable[[Request], Awaitable[Response]]]] = [
            ("POST", top, "restore", self._restore),
            ("GET", top, "list", self._list),
            ("DELETE", one, "close", self._close),
            ("POST", f"{one}/exec", "exec", self._exec),
            ("GET", f"{one}/fs", "read", self._read),
            ("PUT", f"{one}/fs", "write", self._write),
            ("DELETE", f"{one}/fs", "remove", self._remove),
            ("GET", f"{one}/fs/stat", "stat", self._stat),
            ("GET", f"{one}/fs/dir", "dir", self._dir),
            ("POST", f"{one}/fs/dir", "mkdir", self._mkdir),
            ("POST", f"{one}/fs/rename", "rename", self._rename),
            ("GET", f"{one}/fs/walk", "walk", self._walk),
            ("GET", f"{one}/logs", "logs", self._logs),
            ("GET", "/host/v1/templates", "templates", self._templates),
            ("DELETE", "/host/v1/templates/{name}", "remove_template", self._remove_template),
        ]
        return [Route(path, self._guarded(verb, act), methods=[method]) for method, path, verb, act in table]

    def _guarded(
        self, verb: str, act: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            self.calls[verb] += 1
            if self._holds[verb]:
                hold = self._holds[verb].popleft()
                hold.reached.set()
                await hold.go.wait()
            try:
                if self._failures[verb]:
                    raise self._failures[verb].popleft()
                answer = await act(request)
            except errors.TorporError as error:
                return JSONResponse(to_body(error).model_dump(), status_code=status_of(error))
            if self._lost[verb]:
                self._lost[verb] -= 1
                return _Lost()
            return answer

        return endpoint

    def _machine(self, request: Request) -> FakeMachine:
        machine = self._known(request)
        if not machine.facts.alive:
            raise errors.SandboxLost(machine.facts.reason or "the machine died")
        return machine

    def _known(self, request: Request) -> FakeMachine:
        machine = self.machines.get(request.path_params["id"])
        if machine is None:
            raise errors.NotFound(f"sandbox {request.path_params['id']} is not alive here")
        return machine

    async def _restore(self, request: Request) -> Response:
        order = host.Restore.model_validate_json(await request.body())
        if order.template not in self.templates:
            raise errors.NotFound(f"there is no template {order.template}")
        if order.id in self.machines:
            raise errors.Conflict(f"{order.id} is alive already")
        machine = self.begin(order.id, order.template)
        machine.env = dict(order.env)
        return JSONResponse(machine.facts.model_dump(), status_code=201)

    async def _list(self, request: Request) -> Response:
        items = [machine.facts for machine in self.machines.values()]
        return JSONResponse(host.IncarnationList(items=items).model_dump())

    async def _close(self, request: Request) -> Response:
        machine = self.machines.pop(request.path_params["id"], None)
        if machine is not None:
            machine.died.set()
        return Response(status_code=204)

    async def _exec(self, request: Request) -> Response:
        machine = self._machine(request)
        order = host.ExecOrder.model_validate_json(await request.body())
        if order.cwd is not None:
            machine.files.node(order.cwd)
        return _Streamed(_Execution(machine, order, self.clock).output(), frames.MEDIA_TYPE)

    async def _read(self, request: Request) -> Response:
        files, path = self._machine(request).files, request.query_params["path"]
        size = files.size(path)
        return _Streamed(files.read(path), "application/octet-stream", {"content-length": str(size)})

    async def _write(self, request: Request) -> Response:
        files, query = self._machine(request).files, request.query_params
        mode = int(query["mode"], 8) if "mode" in query else None
        count = await files.write(
            query["path"], request.stream(), mode, query.get("user", "root"), query.get("append") == "true"
        )
        return JSONResponse(public.Written(path=query["path"], bytes=count).model_dump())

    async def _remove(self, request: Request) -> Response:
        query = request.query_params
        self._machine(request).files.remove(query["path"], query.get("recursive") == "true")
        return Response(status_code=204)

    async def _stat(self, request: Request) -> Response:
        return JSONResponse(self._machine(request).files.entry(request.query_params["path"]).model_dump())

    async def _dir(self, request: Request) -> Response:
        entries = self._machine(request).files.listing(request.query_params["path"])
        return JSONResponse(public.DirListing(entries=entries).model_dump())

    async def _mkdir(self, request: Request) -> Response:
        query = request.query_params
        mode = int(query.get("mode", "755"), 8)
        self._machine(request).files.mkdir(query["path"], mode, query.get("user", "root"))
        return Response(status_code=204)

    async def _rename(self, request: Request) -> Response:
        order = public.Rename.model_validate_json(await request.body())
        self._machine(request).files.rename(order.source, order.target)
        return Response(status_code=204)

    async def _walk(self, request: Request) -> Response:
        files, path = self._machine(request).files, request.query_params["path"]
        files.listing(path)

        async def lines() -> AsyncIterator[bytes]:
            for name in files.below(path):
                yield files.entry(name).model_dump_json().encode() + b"\n"

        return _Streamed(lines(), "application/x-ndjson")

    async def _logs(self, request: Request) -> Response:
        machine = self._known(request)
        return Response(f"{machine.facts.id} login:\n", media_type="text/plain")

    async def _templates(self, request: Request) -> Response:
        items = list(self.templates.values())
        return Response(public.TemplateList(items=items).model_dump_json(), media_type="application/json")

    async def _remove_template(self, request: Request) -> Response:
        if self.templates.pop(request.path_params["name"], None) is None:
            raise errors.NotFound(f"there is no template {request.path_params['name']}")
        return Response(status_code=204)


class _Line(httpx2.AsyncBaseTransport):
    def __init__(self, fake: FakeHost) -> None:
        self._fake = fake
        self._inner = MemoryTransport(fake)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._fake.down:
            raise httpx2.ConnectError("the host was told to be down", request=request)
        return await self._inner.handle_async_request(request)


class _Lost(Response):
    """No answer at all: the connection ends."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        return


class _Streamed(Response):
    """An answer whose parts are sent as they come; the source is closed when the request ends, however it ends."""

    def __init__(self, parts: AsyncIterator[bytes], media_type: str, headers: dict[str, str] | None = None) -> None:
        self.status_code, self.media_type, self.background = 200, media_type, None
        self._parts = parts
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._parts) as parts:  # type: ignore[type-var]  # every source here is a generator
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Execution:
    """One command under way on a fake machine."""

    def __init__(self, machine: FakeMachine, order: host.ExecOrder, clock: Clock) -> None:
        self._machine, self._order, self._clock = machine, order, clock
        self._queue: asyncio.Queue[frames.Frame | None] = asyncio.Queue(maxsize=4)
        self._killed = False

    async def output(self) -> AsyncIterator[bytes]:
        """Yield the command's frames; closing the iterator kills the command."""
        task = asyncio.create_task(self._run())
        self._machine.started.set()
        ended = False
        try:
            while (frame := await self._queue.get()) is not None:
                yield frames.encode(frame)
            ended = True
        finally:
            if not ended:
                self._machine.killed.put_nowait(self._order.argv)
            task.cancel()
            await wait_ended(task)

    async def _run(self) -> None:
        begin = self._clock.monotonic()
        command = asyncio.create_task(self._command())
        timer = asyncio.create_task(self._clock.sleep(self._order.timeout_s or 10**9))
        death = asyncio.create_task(self._machine.died.wait())
        try:
            await asyncio.wait([command, timer, death], return_when=asyncio.FIRST_COMPLETED)
            if death.done():
                lost = errors.SandboxLost(self._machine.facts.reason or "the machine was closed")
                body: ErrorBody = to_body(lost)
                await self._queue.put(frames.Frame(frames.Kind.ERROR, body.model_dump_json().encode()))
            else:
                outcome = self._outcome(command, round((self._clock.monotonic() - begin) * 1000))
                await self._queue.put(frames.Frame(frames.Kind.EXIT, outcome.model_dump_json().encode()))
            await self._queue.put(None)
        finally:
            for task in (command, timer, death):
                task.cancel()
                await wait_ended(task)

    def _outcome(self, command: asyncio.Task[int], duration_ms: int) -> host.ExecOutcome:
        if not command.done():
            return host.ExecOutcome(exit_code=137, signal="SIGKILL", timed_out=True, duration_ms=duration_ms)
        try:
            return host.ExecOutcome(exit_code=command.result(), duration_ms=duration_ms)
        except Killed:
            return host.ExecOutcome(exit_code=137, signal="SIGKILL", duration_ms=duration_ms)

    async def _command(self) -> int:
        order = self._order
        call = Call(
            words=order.argv,
            stdin=base64.b64decode(order.stdin or ""),
            env=self._machine.env | order.env,
            cwd=order.cwd or "/root",
            user=order.user or "root",
            out=partial(self._write, frames.Kind.STDOUT),
            err=partial(self._write, frames.Kind.STDERR),
        )
        return await Shell(self._machine.files, self._clock).run(call)

    async def _write(self, kind: frames.Kind, data: bytes) -> None:
        for start in range(0, len(data), frames.MAX_PAYLOAD):
            await self._queue.put(frames.Frame(kind, data[start : start + frames.MAX_PAYLOAD]))


def _template(name: str) -> public.TemplateView:
    return public.TemplateView(
        name=name,
        created_at=datetime(2030, 1, 1, tzinfo=UTC),
        fingerprint="f" * 64,
        cpu=1,
        memory_mb=512,
        disk_gb=8,
        accelerator="tcg",
        size_bytes=100_000_000,
        cold_boot_ms=4500,
    )
