"""`/v1/sandboxes/{id}/pty`, `.../ssh` and `.../exec/ws`: a terminal, or a command, on a WebSocket.

What is refused before the upgrade has an HTTP status. Whoever hangs up a terminal may come back to it, or to any other
process, with `process` and `from`; one that nobody has come back to for GRACE_S is hung up. A command on `exec/ws` is
killed when its client hangs up, unless it came with an `Idempotency-Key`, which makes it a process that outlives it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import ValidationError
from starlette.datastructures import Headers, QueryParams
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import Receive, Scope, Send
from websockets.frames import CloseCode

from torpor.control.api.dialects import ENCODINGS, NAMES, Broken, Dialect, Encoding, Name, plain
from torpor.control.api.talk import Command, Line, Session
from torpor.control.service import processes
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, show
from torpor.errors import Busy, InvalidRequest, TorporError
from torpor.kit.shielded import shielded
from torpor.model.ids import SandboxId
from torpor.wire import host
from torpor.wire.processes import StartProcess
from torpor.wire.public import ExecCommand

# A terminal or a command whose client is gone is kept for so long, in seconds of its sandbox's waking life.
GRACE_S = 60.0
# So many WebSockets of this kind may be open to one sandbox.
MOST_OPEN = 32
# Who comes back to a terminal without saying from where is shown so many bytes of what was there.
_SHOWN_AGAIN = 64 * 1024
_ROOT = "/v1/sandboxes/{id}"


def sockets(plane: Plane) -> list[BaseRoute]:
    """Return the routes."""
    counts: Counter[str] = Counter()
    return [
        WebSocketRoute(f"{_ROOT}/{name}", endpoint=kind(plane, counts))
        for name, kind in (("pty", _Pty), ("ssh", _Ssh), ("exec/ws", _Exec))
    ]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a handshake asks for, checked."""

    owned: Owned
    query: QueryParams
    key: str | None
    frames: Name | None
    encoding: Encoding

    @classmethod
    def of(cls, scope: Scope) -> _Asked:
        """Read a handshake. Raises InvalidRequest."""
        query = QueryParams(scope["query_string"])
        return cls(
            owned=Owned(scope["state"]["workspace"], SandboxId(scope["path_params"]["id"])),
            query=query,
            key=Headers(scope=scope).get("idempotency-key"),
            frames=_one_of("frames", query, NAMES),
            encoding=_one_of("encoding", query, ENCODINGS) or "text",
        )


class _Endpoint:
    """Serves one path, as an ASGI application."""

    path: ClassVar[str]

    def __init__(self, plane: Plane, counts: Counter[str]) -> None:
        self._plane, self._counts = plane, counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self  # by its path the audit log knows what was asked for
        line = Line(scope, receive, send)
        try:
            if (await receive())["type"] != "websocket.connect":
                return
            asked = _Asked.of(scope)
            await show(self._plane, asked.owned)
            with self._counted(asked.owned.id):
                await self._serve(asked, line)
        except TorporError as error:
            await line.refuse(error)
        except Broken as broken:
            await line.close(broken.code, broken.reason)
        except OSError:  # the client has gone
            return

    async def _serve(self, asked: _Asked, line: Line) -> None:
        raise NotImplementedError

    @contextmanager
    def _counted(self, sandbox: str) -> Iterator[None]:
        if self._counts[sandbox] >= MOST_OPEN:
            raise Busy(f"{MOST_OPEN} terminals and commands are connected to sandbox {sandbox} already")
        self._counts[sandbox] += 1
        try:
            yield
        finally:
            self._counts[sandbox] -= 1
            if not self._counts[sandbox]:
                del self._counts[sandbox]


class _Pty(_Endpoint):
    """A terminal: a new one, or with `process` one that is there."""

    path = f"{_ROOT}/pty"
    is_plain = False

    async def _serve(self, asked: _Asked, line: Line) -> None:
        job, at = await self._found(asked) if "process" in asked.query else await self._started(asked)
        dialect = Dialect(asked.frames, asked.encoding, (at, job.stderr_start), is_plain=self.is_plain)
        command = Command(job, processes.Offsets(at, job.stderr_start), dialect)
        session = Session(self._plane, asked.owned, command, line)
        session.check()
        await session.run()

    async def _started(self, asked: _Asked) -> tuple[host.Job, int]:
        query = asked.query
        size = {name: number for name in ("rows", "cols") if (number := _number(name, query)) is not None}
        given = {name: query[name] for name in ("cmd", "user", "cwd") if query.get(name)}
        try:
            wish = StartProcess.model_validate(given | {"terminal": size, "hangup_seconds": GRACE_S})
        except ValidationError as error:
            raise plain(error, "the query") from None
        job = await processes.start(self._plane, asked.owned, wish, asked.key)
        return job, _shown_from(job)

    async def _found(self, asked: _Asked) -> tuple[host.Job, int]:
        job = await processes.show_process(self._plane, asked.owned, asked.query["process"])
        since = _number("from", asked.query)
        return job, _shown_from(job) if since is None else since


class _Ssh(_Pty):
    """The same for clients that know of nothing but output, `exit` and `error`."""

    path = f"{_ROOT}/ssh"
    is_plain = True


class _Exec(_Endpoint):
    """A command without a terminal, whose order is the first frame."""

    path = f"{_ROOT}/exec/ws"

    async def _serve(self, asked: _Asked, line: Line) -> None:
        await line.accept()
        dialect = Dialect(asked.frames or "json", asked.encoding, (0, 0))
        try:
            command = await self._ordered(asked, await line.first())
            session = Session(self._plane, asked.owned, command, line)
            session.check()
        except TorporError as error:
            await line.say(dialect.error(error, line.request_id))
            await line.close(CloseCode.POLICY_VIOLATION, error.message)
            return
        try:
            await session.run()
        finally:
            if command.is_killed and not session.has_ended:
                await shielded(self._kill(asked.owned, command.job))

    async def _ordered(self, asked: _Asked, order: object) -> Command:
        try:
            said = ExecCommand.model_validate(order)
        except ValidationError as error:
            raise plain(error, "the first frame") from None
        since = processes.Offsets()
        if asked.key is not None and (said.stdout_from or said.stderr_from):
            since = processes.Offsets(said.stdout_from, said.stderr_from)
            # What was heard of before has been started before, and is not started again if it is gone.
            await processes.show_process(self._plane, asked.owned, processes.named_by(asked.key))
        grace_s = GRACE_S if asked.key is None else None
        wish = StartProcess(**dict(said), open_stdin=True, hangup_seconds=grace_s)
        job = await processes.start(self._plane, asked.owned, wish, asked.key)
        encoding = said.encoding if "encoding" in said.model_fields_set else asked.encoding
        dialect = Dialect(asked.frames or "json", encoding, (since.stdout, since.stderr))
        return Command(job, since, dialect, is_killed=asked.key is None, timeout_s=said.timeout_seconds)

    async def _kill(self, owned: Owned, job: host.Job) -> None:
        """Kill a command whose client is gone; what cannot be told that is killed by its guest, a minute later."""
        with suppress(TorporError):
            await processes.send_signal(self._plane, owned, job.id, "SIGKILL")


def _one_of(name: str, query: Mapping[str, str], known: tuple[Any, ...]) -> Any:
    value = query.get(name)
    if value is not None and value not in known:
        raise InvalidRequest(f"{name} has to be one of {', '.join(known)}")
    return value


def _number(name: str, query: Mapping[str, str]) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise InvalidRequest(f"{name} has to be a whole number")
    return int(text)


def _shown_from(job: host.Job) -> int:
    return max(job.stdout_start, job.stdout_bytes - _SHOWN_AGAIN)
