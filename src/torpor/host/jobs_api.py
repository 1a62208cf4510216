"""Commands on the host agent's side of the wire: `exec` and `jobs` of `wire/host.py`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from torpor.errors import InvalidRequest, NotFound, TorporError
from torpor.guest.client import Guest
from torpor.host.flow.ask import guest_of
from torpor.host.host import Host
from torpor.host.parsing import body_of, flag, json_answer, sandbox_of
from torpor.host.streaming import Stream
from torpor.model.ids import JobId, SandboxId, is_job_id
from torpor.wire import frames
from torpor.wire.errors import to_body
from torpor.wire.frames import Frame, Kind
from torpor.wire.host import ExecOrder, Fed, JobList, JobOrder, Signal, TerminalSize

# How a guest is listened to.
_Listen = Callable[[Guest], AbstractAsyncContextManager[AsyncIterator[Frame]]]
# A count of bytes with more digits is none.
_MAX_DIGITS = 15


def job_routes(host: Host, sandbox: str) -> list[Route]:
    """Return the routes below a sandbox's path that have to do with commands."""
    api = _Api(host)
    jobs = f"{sandbox}/jobs"
    one = f"{jobs}/{{job}}"
    return [
        Route(f"{sandbox}/exec", api.execute, methods=["POST"]),
        Route(jobs, api.start, methods=["POST"]),
        Route(jobs, api.list_all, methods=["GET"]),
        Route(one, api.show, methods=["GET"]),
        Route(f"{one}/output", api.output, methods=["GET"]),
        Route(f"{one}/stdin", api.feed, methods=["POST"]),
        Route(f"{one}/resize", api.resize, methods=["POST"]),
        Route(f"{one}/signal", api.signal, methods=["POST"]),
    ]


class _Api:
    """One method per row of the table in `wire/host.py` that has to do with commands."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def execute(self, request: Request) -> Response:
        order = await body_of(request, ExecOrder)
        if order.job is not None:
            _need_job_id(order.job)
        return self._stream(sandbox_of(request), lambda guest: guest.exec(order))

    async def start(self, request: Request) -> Response:
        order = await body_of(request, JobOrder)
        if order.job is None:
            raise InvalidRequest("job: a command that runs on its own needs an id")
        _need_job_id(order.job)
        async with guest_of(self._host, sandbox_of(request)) as guest:
            return json_answer(await guest.start(order), status=201)

    async def list_all(self, request: Request) -> Response:
        async with guest_of(self._host, sandbox_of(request)) as guest:
            return json_answer(JobList(items=await guest.jobs()))

    async def show(self, request: Request) -> Response:
        job = _job_of(request)
        async with guest_of(self._host, sandbox_of(request)) as guest:
            return json_answer(await guest.job(job))

    async def output(self, request: Request) -> Response:
        job, stdout_from, stderr_from = (
            _job_of(request),
            _offset(request, "stdout_from"),
            _offset(request, "stderr_from"),
        )
        return self._stream(sandbox_of(request), lambda guest: guest.attach(job, stdout_from, stderr_from))

    async def feed(self, request: Request) -> Response:
        job = _job_of(request)
        async with guest_of(self._host, sandbox_of(request)) as guest:
            fed = await guest.feed(job, request.stream(), close=flag(request, "close"))
        return json_answer(Fed(bytes=fed))

    async def resize(self, request: Request) -> Response:
        job, size = _job_of(request), await body_of(request, TerminalSize)
        async with guest_of(self._host, sandbox_of(request)) as guest:
            await guest.resize(job, size)
        return Response(status_code=204)

    async def signal(self, request: Request) -> Response:
        job, wanted = _job_of(request), await body_of(request, Signal)
        async with guest_of(self._host, sandbox_of(request)) as guest:
            await guest.signal(job, wanted.signal)
        return Response(status_code=204)

    def _stream(self, sandbox: SandboxId, listen: _Listen) -> Response:
        return Stream(self._frames(sandbox, listen), frames.MEDIA_TYPE)

    async def _frames(self, sandbox: SandboxId, listen: _Listen) -> AsyncGenerator[bytes, None]:
        begun = False
        try:
            async with guest_of(self._host, sandbox) as guest, listen(guest) as output:
                async for frame in output:
                    begun = True
                    yield frames.encode(frame)
        except TorporError as error:
            if not begun:  # the answer's status can still say it
                raise
            yield frames.encode(Frame(Kind.ERROR, to_body(error).model_dump_json().encode()))


def _job_of(request: Request) -> JobId:
    text = request.path_params["job"]
    if not is_job_id(text):
        raise NotFound(f"there is no process {text!r}")
    return JobId(text)


def _need_job_id(text: str) -> None:
    if not is_job_id(text):
        raise InvalidRequest(f"job: {text!r} is no id of a command")


def _offset(request: Request, name: str) -> int:
    text = request.query_params.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise InvalidRequest(f"{name}: {text!r} is no count of bytes")
    return int(text)
