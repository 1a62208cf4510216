"""The consoles of the fake host's machines."""

from __future__ import annotations

import base64
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from torpor.testing.host_answers import json_answer
from torpor.testing.host_files import Act
from torpor.testing.host_machines import FakeMachine
from torpor.wire.logs import LogPart


class LogAnswers:
    """What the fake host answers about consoles. `consoles`: by id, what is on one, where a test has set it."""

    def __init__(self, known: Callable[[Request], FakeMachine], consoles: dict[str, bytes]) -> None:
        self._known, self._consoles = known, consoles

    def routes(self, one: str) -> list[tuple[str, str, str, Act]]:
        """Return method, path, verb and act, below the path of one sandbox."""
        return [("GET", f"{one}/logs", "logs", self._whole), ("GET", f"{one}/logs/part", "log_part", self._part)]

    async def _whole(self, request: Request) -> Response:
        return Response(self._console_of(request), media_type="text/plain")

    async def _part(self, request: Request) -> Response:
        console = self._console_of(request)
        data = console[int(request.query_params["after"] or 0) :]
        return json_answer(LogPart(position=str(len(console)), data=base64.b64encode(data)))

    def _console_of(self, request: Request) -> bytes:
        id = self._known(request).facts.id
        return self._consoles.get(id, f"{id} login:\n".encode())
