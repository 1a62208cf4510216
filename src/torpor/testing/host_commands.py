"""The commands on the fake host's machines, as it is asked about them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.requests import Request
from starlette.responses import Response

from torpor import errors
from torpor.kit.clock import Clock
from torpor.testing.host_answers import Streamed, json_answer
from torpor.testing.host_files import Act
from torpor.testing.host_jobs import FakeJob
from torpor.testing.host_machines import Execution, FakeMachine
from torpor.wire import frames, host


class JobAnswers:
    """One method for each verb. `cut` returns the event by which what is answered breaks off."""

    def __init__(
        self, machine_of: Callable[[Request], FakeMachine], clock: Clock, cut: Callable[[], asyncio.Event]
    ) -> None:
        self._machine_of = machine_of
        self._clock = clock
        self._cut = cut

    def routes(self, one: str) -> list[tuple[str, str, str, Act]]:
        """Return method, path, verb and act, below the path of one sandbox."""
        return [
            ("POST", f"{one}/exec", "exec", self._execute),
            ("POST", f"{one}/jobs", "start", self._start),
            ("GET", f"{one}/jobs", "jobs", self._list_all),
            ("GET", f"{one}/jobs/{{job}}", "job", self._show),
            ("GET", f"{one}/jobs/{{job}}/output", "attach", self._attach),
            ("POST", f"{one}/jobs/{{job}}/stdin", "feed", self._feed),
            ("POST", f"{one}/jobs/{{job}}/resize", "resize", self._resize),
            ("POST", f"{one}/jobs/{{job}}/signal", "signal", self._signal),
        ]

    async def _execute(self, request: Request) -> Response:
        machine = self._machine_of(request)
        order = host.ExecOrder.model_validate_json(await request.body())
        if order.cwd is not None:
            machine.files.node(order.cwd)
        if order.job is not None:
            job = self._started(machine, order)
            return _streamed(job.listen(order.stdout_from, order.stderr_from, self._cut()))
        return _streamed(Execution(machine, order, self._clock, self._cut()).output())

    async def _start(self, request: Request) -> Response:
        machine = self._machine_of(request)
        order = host.JobOrder.model_validate_json(await request.body())
        return json_answer(self._started(machine, order).described(), 201)

    async def _list_all(self, request: Request) -> Response:
        jobs = [job.described() for job in self._machine_of(request).jobs.values()]
        return json_answer(host.JobList(items=jobs))

    async def _show(self, request: Request) -> Response:
        return json_answer(self._job_of(request).described())

    async def _attach(self, request: Request) -> Response:
        job, query = self._job_of(request), request.query_params
        return _streamed(job.listen(int(query["stdout_from"]), int(query["stderr_from"]), self._cut()))

    async def _feed(self, request: Request) -> Response:
        job, taken = self._job_of(request), 0
        close = request.query_params.get("close") == "true"
        job.feed(b"", close=False)
        async for chunk in request.stream():
            taken += len(chunk)
            job.feed(chunk, close=False)
        if close:
            job.feed(b"", close=True)
        return json_answer(host.Fed(bytes=taken))

    async def _resize(self, request: Request) -> Response:
        job = self._job_of(request)
        job.resize(host.TerminalSize.model_validate_json(await request.body()))
        return Response(status_code=204)

    async def _signal(self, request: Request) -> Response:
        job = self._job_of(request)
        job.signal(host.Signal.model_validate_json(await request.body()).signal)
        return Response(status_code=204)

    def _started(self, machine: FakeMachine, order: host.ExecOrder) -> FakeJob:
        if order.job is None:
            raise errors.InvalidRequest("a job needs an id")
        if (known := machine.jobs.get(order.job)) is not None:
            return known.checked(order)
        machine.jobs[order.job] = FakeJob(machine, order, self._clock)
        return machine.jobs[order.job]

    def _job_of(self, request: Request) -> FakeJob:
        jobs, name = self._machine_of(request).jobs, request.path_params["job"]
        if name not in jobs:
            raise errors.NotFound(f"there is no process {name}")
        return jobs[name]


def _streamed(parts: AsyncIterator[bytes]) -> Response:
    return Streamed(parts, frames.MEDIA_TYPE)
