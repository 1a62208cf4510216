"""Requests to servers in sandboxes: who may make them, and what becomes of them.

By host a link opens the door, in a header, in the query or in a cookie, or it stands open to whoever knows the host, if
the operator has said so; `Authorization` is the server's own there. By
path it is the API's key, which the guard has looked at, or a link in a header or in the query; no cookie is ever set on
the API's own host. See docs/ports.md.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from torpor.control.access import AccessConfig, host_named
from torpor.control.api.problems import answer_for
from torpor.control.proxy import headers, http, websockets
from torpor.control.proxy.addresses import Address, Domain, address_in
from torpor.control.proxy.cookies import moves_to_cookie, to_clean_url
from torpor.control.proxy.headers import Asker, Headers
from torpor.control.proxy.links import MAX_TOKEN, Link, not_valid, read_token
from torpor.control.service.plane import Plane
from torpor.control.service.ports import connected, key_of_link
from torpor.control.service.sandboxes import Owned
from torpor.errors import NotFound, TorporError, Unauthenticated
from torpor.kit.race import Overtaken, race
from torpor.model.access import Caller
from torpor.model.lifecycle import State

_log = structlog.get_logger("torpor.control")

# The route of requests by path, to those that come with a key.
BY_PATH = "/v1/sandboxes/{id}/proxy/{port}/{path:path}"


@dataclass(frozen=True, slots=True)
class Access:
    """By what a request may pass. `link`: the token, and what it says; None where it was the API's key, or is open."""

    owned: Owned
    link: tuple[str, Link] | None = None


class PortHosts:
    """Serves the hosts of servers in sandboxes, and their paths where a link opens them; see `api.door.Elsewhere`."""

    def __init__(self, plane: Plane, access: AccessConfig) -> None:
        self._plane = plane
        self._access = access

    def serves(self, host: str) -> bool:
        """Tell whether a host is below the domain of servers in sandboxes, and none of the API's own."""
        return host.endswith(f".{self._plane.ports.domain.name}") and not self._access.is_ours(host)

    def takes(self, scope: Scope) -> bool:
        """Tell whether a request to the API's host is one to a server in a sandbox, and comes with a link."""
        given: Headers = scope["headers"]
        has_link = headers.values_of(given, headers.TOKEN_HEADER) or headers.tokens_in_query(scope["query_string"])
        return bool(has_link) and address_in(_raw_path(scope)) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. Raises what there is to tell its client before the answer begins."""
        found = address_in(_raw_path(scope))
        host = _host(scope)
        address = self._plane.ports.domain.address_at(host) if self.serves(host_named(host)) else None
        target = _raw_path(scope)
        if address is None:
            if found is None:
                raise NotFound("there is nothing here")
            address, target = found
        request = _Request(self._plane, scope, address, target)
        access = await request.opened()
        if access.link is not None and address.by_host and moves_to_cookie(scope):
            is_secure = scheme_of(scope, self._plane.ports.domain) == "https"
            answer = to_clean_url(scope, *access.link, self._plane.clock.now(), is_secure=is_secure)
            await answer(scope, receive, send)
            return
        await request.serve(access, receive, send)


class ByKey:
    """Serves `/v1/sandboxes/{id}/proxy/{port}/...` to whoever came with a key; the guard has seen to that."""

    path = BY_PATH

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self  # by its path the audit log knows what was asked for
        state = scope["state"]
        try:
            found = address_in(_raw_path(scope))
            if found is None:
                raise NotFound(f"there is nothing at {scope['path']}")
            address, target = found
            access = Access(Owned(state["workspace"], address.sandbox))
            await _Request(self._plane, scope, address, target).serve(access, receive, _noting(scope, send))
        except TorporError as error:
            if state.get("begun"):  # it is left unfinished, and so broken off
                _log.info("answer broken off", request_id=state["request_id"], error=error.message)
                return
            if scope["type"] == "http":
                raise
            await answer_for(error, state["request_id"])(scope, receive, send)


class _Request:
    """One request to a server in a sandbox."""

    def __init__(self, plane: Plane, scope: Scope, address: Address, target: bytes) -> None:
        self._plane, self._scope, self._address = plane, scope, address
        self._query: bytes = scope["query_string"]
        cleaned = headers.without_token(self._query)
        self._target = target + (b"?" + cleaned if cleaned else b"")
        self._headers: Headers = list(scope["headers"])
        headers.check_request(scope.get("method", "GET"), self._target, self._headers)

    async def opened(self) -> Access:
        """Return by what a request may pass that has no key. Raises Unauthenticated, and NotFound where all is open."""
        try:
            return await self._opened_by_link()
        except Unauthenticated:
            if not (self._address.by_host and self._plane.ports.domain.is_open):
                raise
        sandbox = await self._plane.store.get(self._address.sandbox)
        if sandbox is None or sandbox.state is State.DELETED:
            raise NotFound(f"there is no sandbox {self._address.sandbox}")
        return Access(Owned(sandbox.workspace, sandbox.id))

    async def _opened_by_link(self) -> Access:
        tokens = headers.tokens_in(self._headers, self._query, with_cookies=self._takes_cookies())
        refusal: Unauthenticated | None = None
        sandbox = await self._plane.store.get(self._address.sandbox) if tokens else None
        for token in tokens:
            link = read_token(token) if len(token) <= MAX_TOKEN else None
            if link is None or sandbox is None:
                continue
            try:
                self._plane.ports.signer.check(link, self._address, sandbox.workspace, self._plane.clock.now())
            except Unauthenticated as error:
                refusal = refusal if link.expires_at > self._plane.clock.now() else error
                continue
            return Access(Owned(sandbox.workspace, sandbox.id), (token, link))
        if refusal is None and not tokens:
            refusal = Unauthenticated(
                "this needs a link to the port", hint="`torpor url SANDBOX PORT` makes one, as does `sandbox.url(port)`"
            )
        raise refusal or not_valid()

    def _takes_cookies(self) -> bool:
        """Tell whether cookies say anything: not by path, nor where a page of another site has sent them along."""
        if not self._address.by_host:
            return False
        # Where a browser says it itself, a page that hides its origin is known for what it is, and so are pictures,
        # scripts and the like, for which it names no origin, and which a page of a sister's host may ask for.
        sites = headers.values_of(self._headers, b"sec-fetch-site")
        if sites == [b"same-origin"]:
            return True
        origins = headers.values_of(self._headers, b"origin")
        is_visit = headers.values_of(self._headers, b"sec-fetch-dest") == [b"document"]
        if not origins and sites not in ([], [b"none"]) and not is_visit:
            origins = headers.values_of(self._headers, b"referer") or [b"null"]
        return all(_is_of_sandbox(origin, self._plane, self._address) for origin in origins)

    async def serve(self, access: Access, receive: Receive, send: Send) -> None:
        """Pass it on, for as long as what opened it is good. Raises what there is to tell its client."""
        if access.link is None:
            await self._pass_on(access, receive, send)
            return
        _, link = access.link
        caller = await self._caller_of(access.owned, link)
        end = link.expires_at if caller.expires_at is None else min(link.expires_at, caller.expires_at)
        with self._plane.keyring.holding(caller) as over:
            try:
                await race(self._pass_on(access, receive, send), self._end_of(end, over.wait()))
            except Overtaken:
                raise not_valid() from None

    async def _caller_of(self, owned: Owned, link: Link) -> Caller:
        caller = await key_of_link(self._plane, owned, link.key_id)
        if caller is None:
            raise not_valid()
        return caller

    async def _end_of(self, expires_at: datetime, revoked: Coroutine[Any, Any, Any]) -> None:
        try:
            await race(revoked, self._plane.clock.sleep_until(expires_at))
        except Overtaken:
            return

    async def _pass_on(self, access: Access, receive: Receive, send: Send) -> None:
        if self._scope["type"] == "websocket":
            await self._bridge(access, receive, send)
            return
        order = http.Order(
            method=self._scope["method"],
            target=self._target,
            headers=self._for_server(access),
            framing=headers.framing_of(self._headers),
            by_host=self._address.by_host,
            had_token=bool(headers.tokens_in_query(self._query)),
        )
        async with connected(self._plane, access.owned, self._address.port) as connection:
            await http.exchange(connection, order, receive, send)

    async def _bridge(self, access: Access, receive: Receive, send: Send) -> None:
        if (await receive())["type"] != "websocket.connect":
            raise ClientDisconnect
        order = websockets.Order(self._target, self._for_server(access), self._address.by_host)
        try:
            async with connected(self._plane, access.owned, self._address.port) as connection:
                await websockets.bridge(connection, order, receive, _noting(self._scope, send))
        except TorporError as error:
            if not self._scope["state"].get("begun"):
                raise
            _log.info("WebSocket broken off", sandbox=access.owned.id, port=self._address.port, error=error.message)
        except OSError:  # the client has gone
            raise ClientDisconnect from None

    def _for_server(self, access: Access) -> Headers:
        scope, host = self._scope, _host(self._scope)
        asker = Asker(
            client=(scope.get("client") or ("127.0.0.1", 0))[0],
            scheme=scheme_of(scope, self._plane.ports.domain if self._address.by_host else None),
            host=host,
            prefix=self._address.prefix,
            request_id=scope["state"]["request_id"],
        )
        is_ours = access.link is None and not self._address.by_host
        return headers.to_server(self._headers, asker, hides_authorization=is_ours)


def _noting(scope: Scope, send: Send) -> Send:
    async def noted(message: Message) -> None:
        scope["state"]["begun"] = True
        await send(message)

    return noted


def scheme_of(scope: Scope, domain: Domain | None) -> str:
    """Return by which scheme a client asks: as the domain says, which may be served by something before us."""
    if domain is not None and domain.scheme is not None:
        return domain.scheme
    return "https" if scope["scheme"] in ("https", "wss") else "http"


def _raw_path(scope: Scope) -> bytes:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw


def _host(scope: Scope) -> str:
    named = headers.values_of(scope["headers"], b"host")
    return named[0].decode("latin-1") if named else ""


def _is_of_sandbox(origin: bytes, plane: Plane, address: Address) -> bool:
    """Tell whether an `Origin`, or the page of a `Referer`, is a server's of the same sandbox."""
    _, found, rest = origin.decode("latin-1").partition("://")
    host = rest.partition("/")[0]
    if not found:
        return False
    try:
        asking = plane.ports.domain.address_at(host)
    except NotFound:
        return False
    return asking is not None and asking.sandbox == address.sandbox
