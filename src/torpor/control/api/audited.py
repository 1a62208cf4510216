"""What is kept of a request in the audit log, and when."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torpor.control.service.plane import Plane
from torpor.errors import TorporError
from torpor.model.access import SHOWN_CHARACTERS, AuditKind, Caller, NewAuditEntry
from torpor.model.ids import is_build_id, is_job_id, is_sandbox_id, is_snapshot_id, is_template_name
from torpor.wire.errors import status_of

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
# What is done inside a sandbox, and changes nothing of what the server keeps.
_INSIDE = re.compile(r"/v1/sandboxes/\{id\}/(?:exec|processes|pty|ssh|repl|fs|proxy)(?:/|$)")
_NO_ROUTE = "(no route)"
# So much of a key as names it.
_PREFIX = re.compile(rf"tpr_[A-Za-z0-9_-]{{0,{SHOWN_CHARACTERS - len('tpr_')}}}")


class Audited:
    """Serves one request and has it written down: what was asked for, by whom, and what was answered.

    Of what only reads nothing is kept. A change is on the disk before its answer begins; what is done inside a sandbox,
    and what was refused, is written down a moment later. An answer that began early, as long ones do, is told when it
    begins, and once more where something came of it after that, or nothing could.
    """

    def __init__(self, plane: Plane, scope: Scope, caller: Caller, client: str) -> None:
        self._plane = plane
        self._scope = scope
        self._caller = caller
        self._client = client
        self._targets: list[str] = scope["state"].setdefault("targets", [])
        self._status: int | None = None
        self._told_targets = -1
        self._ended = False

    async def serve(self, app: ASGIApp, receive: Receive, send: Send) -> None:
        """Serve it. Raises what the application raises, and Unavailable where the log cannot be written any more."""
        if self._scope["type"] == "http" and self._scope["method"] in _READING:
            await app(self._scope, receive, send)
            return
        self._plane.auditor.check_room()

        async def telling(message: Message) -> None:
            await self._take_in(message)
            await send(message)

        try:
            await app(self._scope, receive, telling)
        except TorporError as error:
            self._conclude(status_of(error))
            raise
        except BaseException:
            self._conclude(None)
            raise
        self._conclude(None)

    async def _take_in(self, message: Message) -> None:
        """Tell of an answer that begins, and of one that ends with more than was told."""
        kind = message["type"]
        if kind in ("http.response.start", "websocket.http.response.start"):
            await self._tell(message["status"])
        elif kind == "websocket.accept":
            await self._tell(101)
        elif kind.endswith(".body") and not message.get("more_body", False):
            if len(self._targets) > self._told_targets:
                await self._tell(self._status)
            self._ended = True
        elif kind == "websocket.close":
            if self._told_targets < 0:
                await self._tell(403)
            self._ended = True

    async def _tell(self, status: int | None) -> None:
        if (status, len(self._targets)) == (self._status, self._told_targets):
            return
        entry = self._entry(status)
        if entry.kind is AuditKind.CHANGE:
            await self._plane.auditor.write_now(entry)
        else:
            self._plane.auditor.note(entry)

    def _conclude(self, status: int | None) -> None:
        """Tell of a request that is over without its answer's end: refused, broken off, or its client gone."""
        if not self._ended and not (self._scope["type"] == "websocket" and self._status == 101):
            self._plane.auditor.note(self._entry(status))

    def _entry(self, status: int | None) -> NewAuditEntry:
        self._status, self._told_targets = status, len(self._targets)
        return NewAuditEntry(
            at=self._plane.clock.now(),
            kind=self._kind(status),
            request_id=self._scope["state"]["request_id"],
            action=action_of(self._scope),
            client=self._client,
            status=status,
            targets=tuple(dict.fromkeys([*_ids_in(self._scope), *self._targets])),
            workspace=self._caller.workspace,
            key_id=self._caller.key_id,
            key_prefix=self._caller.prefix,
        )

    def _kind(self, status: int | None) -> AuditKind:
        if status is not None and 400 <= status < 500:
            return AuditKind.REFUSED
        return AuditKind.USE if _INSIDE.match(_route_of(self._scope)) else AuditKind.CHANGE


def action_of(scope: Scope) -> str:
    """Return what a request asks for: its method, and its route without what stands in the place of names."""
    method = scope.get("method", "WEBSOCKET")
    return f"{method} {_route_of(scope) or _NO_ROUTE}"[:256]


def _route_of(scope: Scope) -> str:
    path: str = getattr(scope.get("route"), "path", "")
    return path


def _ids_in(scope: Scope) -> list[str]:
    """Return the ids in a request's path: only what has the form of one, and so is nothing that somebody else wrote."""
    found = scope.get("path_params", {})
    ids = [
        str(value)
        for value in found.values()
        if is_sandbox_id(str(value)) or is_snapshot_id(str(value)) or is_job_id(str(value)) or is_build_id(str(value))
    ]
    if is_template_name(name := str(found.get("name", ""))):
        ids.append(name)
    if _PREFIX.fullmatch(prefix := str(found.get("prefix", ""))) is not None:
        ids.append(prefix)
    return ids
