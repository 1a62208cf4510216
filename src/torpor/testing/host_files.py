"""The files of the fake host's machines, as it is asked about them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from torpor.testing.host_answers import Streamed, json_answer
from torpor.testing.host_machines import FakeMachine
from torpor.wire import public

Act = Callable[[Request], Awaitable[Response]]


class FileAnswers:
    """One method for each verb. `machine_of` returns the running machine that a request names, or refuses."""

    def __init__(self, machine_of: Callable[[Request], FakeMachine]) -> None:
        self._machine_of = machine_of

    def routes(self, one: str) -> list[tuple[str, str, str, Act]]:
        """Return method, path, verb and act, below the path of one sandbox."""
        return [
            ("GET", f"{one}/fs", "read", self._read),
            ("PUT", f"{one}/fs", "write", self._write),
            ("DELETE", f"{one}/fs", "remove", self._remove),
            ("GET", f"{one}/fs/stat", "stat", self._stat),
            ("GET", f"{one}/fs/dir", "dir", self._dir),
            ("POST", f"{one}/fs/dir", "mkdir", self._mkdir),
            ("POST", f"{one}/fs/rename", "rename", self._rename),
            ("GET", f"{one}/fs/walk", "walk", self._walk),
        ]

    async def _read(self, request: Request) -> Response:
        files, path = self._machine_of(request).files, request.query_params["path"]
        size = files.size(path)
        return Streamed(files.read(path), "application/octet-stream", {"content-length": str(size)})

    async def _write(self, request: Request) -> Response:
        files, query = self._machine_of(request).files, request.query_params
        mode = int(query["mode"], 8) if "mode" in query else None
        count = await files.write(
            query["path"], request.stream(), mode, query.get("user", "root"), query.get("append") == "true"
        )
        return json_answer(public.Written(path=query["path"], bytes=count))

    async def _remove(self, request: Request) -> Response:
        query = request.query_params
        self._machine_of(request).files.remove(query["path"], query.get("recursive") == "true")
        return Response(status_code=204)

    async def _stat(self, request: Request) -> Response:
        return json_answer(self._machine_of(request).files.entry(request.query_params["path"]))

    async def _dir(self, request: Request) -> Response:
        entries = self._machine_of(request).files.listing(request.query_params["path"])
        return json_answer(public.DirListing(entries=entries))

    async def _mkdir(self, request: Request) -> Response:
        query = request.query_params
        mode = int(query.get("mode", "755"), 8)
        self._machine_of(request).files.mkdir(query["path"], mode, query.get("user", "root"))
        return Response(status_code=204)

    async def _rename(self, request: Request) -> Response:
        order = public.Rename.model_validate_json(await request.body())
        self._machine_of(request).files.rename(order.source, order.target)
        return Response(status_code=204)

    async def _walk(self, request: Request) -> Response:
        files, path = self._machine_of(request).files, request.query_params["path"]
        files.listing(path)

        async def lines() -> AsyncIterator[bytes]:
            for name in files.below(path):
                yield files.entry(name).model_dump_json().encode() + b"\n"

        return Streamed(lines(), "application/x-ndjson")
