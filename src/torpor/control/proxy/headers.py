"""What passes between a client and a server in a sandbox, of the headers of either.

Hop-by-hop headers stay on their hop. Towards the server nothing of ours passes (keys, links' tokens), and what says who
asks is set by us. Towards the client nothing passes that would reach beyond the server's own pages: cookies of other
hosts, orders to the browser about the whole host, orders to a web server in front of us.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torpor.errors import BadAnswer, InvalidRequest

Headers = list[tuple[bytes, bytes]]

TOKEN_HEADER = b"x-torpor-token"
TOKEN_QUERY = b"torpor_token"
COOKIE = b"torpor-link"
# With this prefix a browser takes a cookie only from the very host it is for, and only over TLS.
SECURE_COOKIE = b"__Host-torpor-link"

_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(rb"/[\x21-\x7e]*")
# An API key that was sent where a link was enough.
_KEY = re.compile(rb"bearer\s+tpr_", re.IGNORECASE)
_LENGTH = re.compile(rb"[0-9]{1,18}")
_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade http2-settings".split()
)
# Who asks is said by us; a body is never waited for by a server, since ours has taken it already.
_SET_BY_US = frozenset(b"host expect forwarded x-real-ip x-request-id".split())
_FORWARDED = b"x-forwarded-"
_FRAMING = frozenset(b"content-length transfer-encoding".split())
# Towards the client: those about a whole host or its connections, and those that a web server before us would obey.
_BEYOND = frozenset(
    b"alt-svc clear-site-data date nel public-key-pins public-key-pins-report-only report-to reporting-endpoints "
    b"server service-worker-allowed strict-transport-security x-request-id x-sendfile x-lighttpd-send-file".split()
)
_ACCEL = b"x-accel-"
# Pages by path are on the API's own host: the browser is told to treat them as of no host at all. So they have no
# storage, no service workers and no cookies there, and no script of theirs can read what the API answers.
_SANDBOX = b"sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts"
_BY_PATH: Headers = [
    (b"content-security-policy", _SANDBOX),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, and how he names the server: what is told to it."""

    client: str
    scheme: str
    host: str
    prefix: str
    request_id: str


def check_request(method: str, target: bytes, headers: Headers) -> None:
    """Raise InvalidRequest for a request that two readers could read in two ways."""
    if method in ("CONNECT", "TRACE"):
        raise InvalidRequest(f"{method} is not passed on to servers in sandboxes")
    if _TARGET.fullmatch(target) is None:
        raise InvalidRequest("the path has characters in it that have to be percent-encoded")
    if any(_NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None for name, value in headers):
        raise InvalidRequest("a header has characters in it that no header may have")
    if len(values_of(headers, b"host")) != 1:
        raise InvalidRequest("a request has to name exactly one host")
    lengths, codings = values_of(headers, b"content-length"), values_of(headers, b"transfer-encoding")
    if len(lengths) + len(codings) > 1:
        raise InvalidRequest("the length of the body is said more than once, in Content-Length or Transfer-Encoding")
    if any(_LENGTH.fullmatch(length) is None for length in lengths):
        raise InvalidRequest("Content-Length is not a number")
    if any(coding.strip().lower() != b"chunked" for coding in codings):
        raise InvalidRequest("the only Transfer-Encoding that is understood is chunked")


def values_of(headers: Headers, name: bytes) -> list[bytes]:
    """Return the values of all headers with a name."""
    return [value for each, value in headers if each.lower() == name]


def to_server(headers: Headers, asker: Asker, *, hides_authorization: bool) -> Headers:
    """Return what a server gets: neither framing nor hop-by-hop headers, nothing of ours, and who asks, said by us."""
    hop = _hop_of(headers)
    passed: Headers = []
    for name, value in headers:
        lower = name.lower()
        # As a server reads it that hands headers on in variables, where a dash is an underscore.
        meant = lower.replace(b"_", b"-")
        if lower in hop or meant in _SET_BY_US or meant in _FRAMING or meant == TOKEN_HEADER:
            continue
        if meant.startswith(_FORWARDED) or _is_ours(meant, value, hides_authorization):
            continue
        if lower == b"cookie":
            value = _without_our_cookies(value)  # noqa: PLW2901 - the one that is passed on
        if value or lower != b"cookie":
            passed.append((name, value))
    return _said_by_us(asker) + passed


def _is_ours(name: bytes, value: bytes, hides_authorization: bool) -> bool:
    """Tell whether a header has a key or a token in it that is none of the server's business."""
    if name == b"authorization":
        return hides_authorization or _KEY.match(value.strip()) is not None
    return name == b"referer" and TOKEN_QUERY + b"=" in value


def _said_by_us(asker: Asker) -> Headers:
    said = [
        (b"host", asker.host),
        (b"x-forwarded-for", asker.client),
        (b"x-forwarded-proto", asker.scheme),
        (b"x-forwarded-host", asker.host),
        (b"x-request-id", asker.request_id),
    ]
    if asker.prefix:
        said.append((b"x-forwarded-prefix", asker.prefix))
    return [(name, value.encode("latin-1", "replace")) for name, value in said]


def framing_of(headers: Headers) -> Headers:
    """Return how the body of a checked request is said to be long: by its length, in chunks, or there is none."""
    if lengths := values_of(headers, b"content-length"):
        return [(b"content-length", lengths[0])]
    return [(b"transfer-encoding", b"chunked")] if values_of(headers, b"transfer-encoding") else []


def check_answer(status: int, headers: Headers) -> None:
    """Raise BadAnswer for an answer that two readers could read in two ways."""
    if not 200 <= status < 600:
        raise BadAnswer(f"the server in the sandbox answered with the status {status}, which HTTP does not have")
    lengths, codings = values_of(headers, b"content-length"), values_of(headers, b"transfer-encoding")
    if len(lengths) + len(codings) > 1:
        raise BadAnswer("the server in the sandbox says more than once how long its answer is")
    if any(_NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None for name, value in headers):
        raise BadAnswer("the server in the sandbox sent a header that no header may be")


def to_client(status: int, headers: Headers, *, by_host: bool, had_token: bool) -> Headers:
    """Return what a client gets of a checked answer. `had_token`: the request's URL had a token in it."""
    hop = _hop_of(headers)
    bodiless = status in (204, 304)
    passed: Headers = []
    for name, value in headers:
        lower = name.lower()
        if lower in hop or lower in _BEYOND or lower.startswith(_ACCEL) or (bodiless and lower == b"content-length"):
            continue
        if lower == b"set-cookie":
            passed += _cookie_for(value) if by_host else []
        elif by_host or lower not in {ours for ours, _ in _BY_PATH if ours != b"content-security-policy"}:
            passed.append((lower, value))
    if not by_host:
        return passed + _BY_PATH
    return [*_without(passed, b"referrer-policy"), (b"referrer-policy", b"no-referrer")] if had_token else passed


def _without(headers: Headers, unwanted: bytes) -> Headers:
    return [(name, value) for name, value in headers if name != unwanted]


def _hop_of(headers: Headers) -> set[bytes]:
    named = {word.strip().lower() for value in values_of(headers, b"connection") for word in value.split(b",")}
    return named - {b"host", b"content-length", TOKEN_HEADER} | _HOP


def _without_our_cookies(value: bytes) -> bytes:
    pairs = [pair.strip() for pair in value.split(b";")]
    return b"; ".join(pair for pair in pairs if pair and pair.partition(b"=")[0].strip() not in (COOKIE, SECURE_COOKIE))


def _cookie_for(value: bytes) -> Headers:
    """Return a cookie as one for the very host that sets it; none for one that would take the place of ours."""
    pair, *attributes = value.split(b";")
    if pair.partition(b"=")[0].strip() in (COOKIE, SECURE_COOKIE):
        return []
    kept = [each for each in attributes if each.partition(b"=")[0].strip().lower() != b"domain"]
    return [(b"set-cookie", b";".join([pair, *kept]))]


def tokens_in(headers: Headers, query: bytes, *, with_cookies: bool) -> list[str]:
    """Return what may be links' tokens in a request, a few at most, those that were sent on purpose first."""
    found = values_of(headers, TOKEN_HEADER) + tokens_in_query(query)
    for value in values_of(headers, b"cookie") if with_cookies else []:
        found += [
            pair.partition(b"=")[2].strip()
            for pair in value.split(b";")
            if pair.partition(b"=")[0].strip() in (COOKIE, SECURE_COOKIE)
        ]
    return [token.decode("latin-1") for token in found[:8]]


def tokens_in_query(query: bytes) -> list[bytes]:
    """Return the tokens in a query."""
    pairs = (part.partition(b"=") for part in query.split(b"&"))
    return [value for name, _, value in pairs if name == TOKEN_QUERY]


def without_token(query: bytes) -> bytes:
    """Return a query without the tokens in it, the rest as it was."""
    return b"&".join(part for part in query.split(b"&") if part.partition(b"=")[0] != TOKEN_QUERY)
