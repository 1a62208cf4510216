"""Web pages of other sites: closed to them, but for the origins that the operator lists."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import Scope

from torpor.control.access import AccessConfig, is_same_site
from torpor.errors import Forbidden

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
# What a page may send and read beside what every page may.
_METHODS = b"GET, POST, PUT, PATCH, DELETE"
_SENT = b"authorization, content-type, idempotency-key, last-event-id, prefer, x-request-id"
_READ = b"retry-after, x-next-cursor, x-process-id, x-request-id"
_KEPT_S = b"600"

Headers = list[tuple[bytes, bytes]]


def is_preflight(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether a browser asks whether a page may ask."""
    is_asking = scope["type"] == "http" and scope["method"] == "OPTIONS"
    return is_asking and b"origin" in headers and b"access-control-request-method" in headers


def preflight_headers(access: AccessConfig, headers: Mapping[bytes, bytes]) -> Headers:
    """Return what allows a page of a listed origin to ask. Raises Forbidden for any other."""
    if not (allowing := allowing_headers(access, headers)):
        raise _foreign(headers)
    return [
        *allowing,
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-allow-headers", _SENT),
        (b"access-control-max-age", _KEPT_S),
    ]


def allowing_headers(access: AccessConfig, headers: Mapping[bytes, bytes]) -> Headers:
    """Return what lets a page of a listed origin read an answer; nothing for any other page."""
    origin = headers.get(b"origin")
    if origin is None or origin.decode("latin-1").lower() not in access.origins:
        return []
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _READ),
        (b"vary", b"Origin"),
    ]


def check_origin(access: AccessConfig, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
    """Raise Forbidden for a change, or a WebSocket, that a page of a site asks for that is neither this nor listed.

    Such a page has no key, so this is a second bolt on that door. What only reads is served: without the headers above
    no page can see it.
    """
    if b"origin" not in headers or (scope["type"] == "http" and scope["method"] in _READING):
        return
    origin = headers[b"origin"].decode("latin-1").lower()
    if origin not in access.origins and not is_same_site(origin, headers.get(b"host", b"").decode("latin-1")):
        raise _foreign(headers)


def _foreign(headers: Mapping[bytes, bytes]) -> Forbidden:
    origin = headers[b"origin"][:256].decode("latin-1")
    return Forbidden(
        f"a page of {origin!r} may not use this server", hint="an operator can add its origin to TORPOR_CORS_ORIGINS"
    )
