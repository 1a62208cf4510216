"""The guard: whose key it is, how often it may ask, and what is kept of it in the audit log."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torpor.control.access import AccessConfig
from torpor.control.api.audited import Audited, action_of
from torpor.control.service.keyring import caller_of, digest_of
from torpor.control.service.keys import LOCAL_KEY_ID
from torpor.control.service.plane import DEFAULT_WORKSPACE, Plane
from torpor.control.service.rates import Rates
from torpor.errors import RateLimited, TorporError, Unauthenticated
from torpor.kit.shielded import end_tasks
from torpor.model.access import SHOWN_CHARACTERS, AuditKind, Caller, Key, NewAuditEntry, Role
from torpor.wire.errors import status_of

# What is open to everybody, and what to who asks on this machine.
_OPEN = frozenset({"/healthz"})
_OPEN_HERE = frozenset({"/healthz", "/version", "/openapi.json"})


@dataclass(frozen=True, slots=True)
class Client:
    """Where a request comes from. `address`: as text, `group`: what counts as one of it, `is_here`: this machine."""

    address: str
    group: str
    is_here: bool


class Guard:
    """Lets requests to an application that come with a key, as often as it may ask, and has what they do written down.

    Puts `caller` and `workspace` into the request's state. Requests of a key that is revoked, or comes to its end,
    while they are served are told that their client is gone: streams end, changes are completed.
    """

    def __init__(self, app: ASGIApp, plane: Plane, key: str, access: AccessConfig) -> None:
        self._app = app
        self._plane = plane
        self._local_digest = digest_of(key)
        self._local = Caller(LOCAL_KEY_ID, key[:SHOWN_CHARACTERS], DEFAULT_WORKSPACE, Role.ADMIN)
        self._rates = Rates(plane.clock, access.rate_per_second, access.rate_burst)
        self._failures = Rates(plane.clock, access.failures_per_minute / 60, access.failures_per_minute)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. Raises Unauthenticated, RateLimited, and what the application raises."""
        client = client_of(scope)
        if scope["path"] in (_OPEN_HERE if client.is_here else _OPEN):
            await self._app(scope, receive, send)
            return
        try:
            caller = await self.caller(scope, client)
            self._check_rate(scope, caller)
        except TorporError as error:
            self._note_refusal(scope, client, error)
            raise
        with self._holding(caller) as over:
            scope["state"]["caller"] = caller
            scope["state"]["workspace"] = caller.workspace
            audited = Audited(self._plane, scope, caller, client.address)
            await audited.serve(self._app, _until_over(self._plane, scope, over, receive), send)

    async def caller(self, scope: Scope, client: Client) -> Caller:
        """Return whom a request's key speaks for. Raises Unauthenticated, and RateLimited for too many wrong keys.

        While an address is held off, keys in use are still known: whoever shares it with somebody who guesses is not
        shut out, and who guesses gets nothing looked up.
        """
        key = _key_in(scope)
        digest = digest_of(key)
        if hmac.compare_digest(digest, self._local_digest):
            return self._local
        if not self._plane.keyring.remembers(digest) and (wait_s := self._failures.wait_s(client.group)):
            raise _limited(f"too many requests with a wrong key came from {client.address}", wait_s)
        found = await self._plane.keyring.find(digest)
        try:
            caller = _known(found, self._plane)
        except Unauthenticated as error:
            if found is not None:
                scope["state"]["refused"] = (found.workspace, found.id, found.prefix)
            if wait_s := self._failures.take(client.group):
                raise _limited(f"too many requests with a wrong key came from {client.address}", wait_s) from error
            raise
        return caller

    def _check_rate(self, scope: Scope, caller: Caller) -> None:
        if caller is self._local:  # the operator, whom nobody has to be protected from
            return
        if wait_s := self._rates.take(caller.key_id):
            scope["state"]["refused"] = (caller.workspace, caller.key_id, caller.prefix)
            raise _limited(f"the key {caller.prefix}... asks more often than it may", wait_s)

    @contextmanager
    def _holding(self, caller: Caller) -> Iterator[asyncio.Event | None]:
        if caller is self._local:
            yield None
            return
        with self._plane.keyring.holding(caller) as over:
            yield over

    def _note_refusal(self, scope: Scope, client: Client, error: TorporError) -> None:
        workspace, key_id, prefix = scope["state"].get("refused", (None, None, None))
        self._plane.auditor.note_refusal(
            NewAuditEntry(
                at=self._plane.clock.now(),
                kind=AuditKind.REFUSED,
                request_id=scope["state"]["request_id"],
                action=action_of(scope),
                client=client.address,
                status=status_of(error),
                workspace=workspace,
                key_id=key_id,
                key_prefix=prefix,
            )
        )


def client_of(scope: Scope) -> Client:
    """Return where a request comes from. Headers that say something about it are not believed."""
    address = str((scope.get("client") or ("local", 0))[0])
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:  # what has no IP address comes over no network: from this process, or a socket of this machine
        return Client(address[:64], address[:64], is_here=True)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    # Who has one IPv6 address has 2**64 of them.
    bits = 32 if parsed.version == 4 else 64
    return Client(str(parsed), str(ipaddress.ip_network((parsed, bits), strict=False)), parsed.is_loopback)


def _key_in(scope: Scope) -> str:
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, key = (found[0] if len(found) == 1 else b"").partition(b" ")
    if scheme.lower() != b"bearer" or not key.strip():
        raise _unknown("the API key is missing")
    return key.strip().decode("latin-1")


def _known(key: Key | None, plane: Plane) -> Caller:
    if key is None:
        raise _unknown("the API key is not one of this server's")
    caller = caller_of(key, plane.clock.now())
    plane.keyring.used(key)
    return caller


def _unknown(what: str) -> Unauthenticated:
    return Unauthenticated(
        f"{what}; the server's own is in the file `key` in the server's home directory",
        hint="send it as `Authorization: Bearer KEY`, or set TORPOR_API_KEY",
    )


def _limited(what: str, wait_s: float) -> RateLimited:
    error = RateLimited(f"{what}; the next is heard in {max(wait_s, 0.001):.3f} s")
    error.retry_after_s = wait_s
    return error


def _until_over(plane: Plane, scope: Scope, over: asyncio.Event | None, receive: Receive) -> Receive:
    """Return what a request receives: what its client sends, until its key is over; then that the client is gone."""
    if over is None:
        return receive
    expires_at = scope["state"]["caller"].expires_at
    has_begun = False
    gone: Message = {"type": "http.disconnect"}
    if scope["type"] == "websocket":
        gone = {"type": "websocket.disconnect", "code": 1008}

    async def received() -> Message:
        nonlocal has_begun
        # Also in the middle of a body: whoever never ends his would hear the answer for ever.
        is_ended = has_begun and expires_at is not None and expires_at <= plane.clock.now()
        if over.is_set() or is_ended:
            return gone
        has_begun = True
        sent = asyncio.ensure_future(receive())
        ends: list[asyncio.Task[Any]] = [asyncio.create_task(over.wait())]
        if expires_at is not None:
            ends.append(asyncio.create_task(plane.clock.sleep_until(expires_at)))
        try:
            await asyncio.wait([sent, *ends], return_when=asyncio.FIRST_COMPLETED)
            return sent.result() if sent.done() else gone
        finally:
            await end_tasks(sent, *ends)

    return received
