"""How a browser that has followed a link goes on without it: by a cookie for that host alone."""

from __future__ import annotations

from datetime import datetime

from starlette.responses import Response
from starlette.types import Scope

from torpor.control.proxy import headers
from torpor.control.proxy.links import Link


def moves_to_cookie(scope: Scope) -> bool:
    """Tell whether it is a browser that follows a link to show a page: everybody else is answered at once."""
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return False
    if not headers.tokens_in_query(scope["query_string"]):
        return False
    modes = headers.values_of(scope["headers"], b"sec-fetch-mode")
    accepts = headers.values_of(scope["headers"], b"accept")
    return b"navigate" in modes or (not modes and any(b"text/html" in accept for accept in accepts))


def to_clean_url(scope: Scope, token: str, link: Link, now: datetime, *, is_secure: bool) -> Response:
    """Return the redirect to the same URL without its token, which is in a cookie from then on."""
    query = headers.without_token(scope["query_string"])
    raw = scope.get("raw_path") or scope["path"].encode()
    target = local(raw.decode("ascii")) + (f"?{query.decode('ascii')}" if query else "")
    name = (headers.SECURE_COOKIE if is_secure else headers.COOKIE).decode()
    lasts_s = max(1, round((link.expires_at - now).total_seconds()))
    cookie = f"{name}={token}; Path=/; Max-Age={lasts_s}; HttpOnly; SameSite=Lax{'; Secure' if is_secure else ''}"
    said = {"location": target, "set-cookie": cookie, "referrer-policy": "no-referrer", "cache-control": "no-store"}
    return Response(status_code=303, headers=said)


def local(path: str) -> str:
    """Return a path so that, as a redirect's target, it is one on the same host: `//other.example/` is not."""
    safe = path.replace("\\", "%5C")
    return f"/.{safe}" if safe.startswith("//") else safe
