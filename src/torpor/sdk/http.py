"""How the SDK speaks HTTP: one description of a call, and the settings of the connections."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from torpor.errors import InvalidRequest
from torpor.sdk.body import Body
from torpor.sdk.settings import Server

DEFAULT_REQUEST_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10.0
# A running command's line: the server gives a sign of life at least every 5 s, so this long a silence is a dead line.
STREAM_SILENCE_S = 20.0
# What writes or reads a whole guest takes as long as the server's disk needs, and waits for what is before it in line.
FREEZE_SILENCE_S = 300.0

# Of the silence that is borne, so much may be a wait for an answer to begin.
_WAIT_SHARE = 0.8

# The values of a query; a list is sent as so many values of one name.
Query = dict[str, str | list[str]]

_IDEMPOTENT = frozenset({"GET", "PUT", "DELETE"})


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the API.

    `repeatable`: running it twice changes no more than once (None: as its method promises). `silence_s`: how long the
    server may stay silent, in seconds (None: the client's request timeout). `once`: it is not tried again, whatever
    comes of it.
    """

    method: str
    path: str
    params: Mapping[str, str | list[str]] = field(default_factory=dict)
    content: bytes = b""
    body: Body | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool | None = None
    silence_s: float | None = None
    once: bool = False

    @property
    def may_repeat(self) -> bool:
        """Whether it may be sent again after its answer was lost."""
        return self.method in _IDEMPOTENT if self.repeatable is None else self.repeatable

    @property
    def may_resend(self) -> bool:
        """Whether it may be sent a second time at all, and what it sends is still there."""
        return not self.once and (self.body is None or self.body.replayable)

    def all_headers(self, silence_s: float) -> dict[str, str]:
        """Return its headers, with the length of a body of known length.

        The server is told (RFC 7240) how much of `silence_s` it may take to answer before it keeps the line alive,
        because an answer that has begun cannot become an error any more.
        """
        headers = dict(self.headers)
        if self.method == "POST":
            headers["Prefer"] = f"wait={max(1, int(silence_s * _WAIT_SHARE))}"
        if self.body is not None:
            headers.setdefault("Content-Type", "application/octet-stream")
            if self.body.length is not None:
                headers["Content-Length"] = str(self.body.length)
        elif self.content:
            headers["Content-Type"] = "application/json"
        return headers


def sendable(query: Mapping[str, str | list[str]]) -> Query:
    """Return a query as it is sent. Raises InvalidRequest for text that is not valid Unicode."""
    for name, value in query.items():
        try:
            "".join([name, *value]).encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{name}: half a surrogate pair is no character, and cannot be sent") from error
    return dict(query)


def making(path: str, content: bytes, silence_s: float | None = None) -> Call:
    """Return a call that makes something new, under a key of its own: sent again, it makes no second one."""
    key = {"Idempotency-Key": secrets.token_hex(16)}
    return Call("POST", path, content=content, headers=key, repeatable=True, silence_s=silence_s)


def changing(path: str, content: bytes = b"") -> Call:
    """Return a call after which a sandbox is as asked, however often it is sent."""
    return Call("POST", path, content=content, repeatable=True, silence_s=FREEZE_SILENCE_S)


def connection_settings(server: Server) -> dict[str, Any]:
    """Return the keywords of an httpx2 client for a server."""
    return {
        "base_url": f"{server.url}/v1",
        "headers": {"Authorization": f"Bearer {server.key}", "Accept-Encoding": "identity"},
        "verify": _trust(server),
        # A proxy of the environment would be asked for this machine's own address.
        "trust_env": not server.is_loopback,
        # An idle connection is dropped here before the server drops it, so no request runs into a closing one.
        "limits": httpx2.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=30.0),
    }


def _trust(server: Server) -> ssl.SSLContext | bool:
    """Return who vouches for a server. Raises InvalidRequest for a file without certificates."""
    if not server.url.startswith("https:"):
        # Plain HTTP needs no certificates, and loading the bundle takes longer than a call.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if server.ca_file is not None:
            return ssl.create_default_context(cafile=server.ca_file)
        if server.pinned is None:
            return True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # This very certificate, whoever issued it and whatever it calls the server: the server itself said which it is.
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=server.pinned)
    except OSError as error:
        where = server.ca_file or "the server's own file"
        raise InvalidRequest(f"no certificates can be read from {where}", hint="correct TORPOR_CA_FILE") from error
    return context


def patience(request_timeout: float | None) -> float:
    """Return the request timeout in seconds. Raises InvalidRequest unless it is a positive number."""
    if request_timeout is None:
        return DEFAULT_REQUEST_TIMEOUT_S
    if isinstance(request_timeout, bool) or not isinstance(request_timeout, int | float) or not request_timeout > 0:
        raise InvalidRequest(f"request_timeout has to be a positive number of seconds, not {request_timeout!r}")
    return float(request_timeout)


def timeouts(silence_s: float, request_timeout_s: float) -> httpx2.Timeout:
    """Return httpx2's form of them."""
    return httpx2.Timeout(
        silence_s, connect=min(CONNECT_TIMEOUT_S, silence_s, request_timeout_s), pool=request_timeout_s
    )
