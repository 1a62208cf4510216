"""Links to servers in sandboxes, as they are asked for and told."""

from __future__ import annotations

from typing import Literal

from pydantic import TypeAdapter, ValidationError

from torpor.errors import InvalidRequest, OutcomeUnknown
from torpor.sdk.foreign import checked
from torpor.wire.ports import LinkOrder, LinkView, PortView

# Where a link leads: to a host of the server's own, or to a path on the API's host.
Route = Literal["host", "path"]
_MOST_PORT = 65535
_LISTED = TypeAdapter(list[PortView])


def port_path(sandbox_path: str, port: int) -> str:
    """Return what a link to a port is asked for at. Raises InvalidRequest."""
    if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= _MOST_PORT:
        raise InvalidRequest(f"a port is a number from 1 to {_MOST_PORT}, and {port!r} is not")
    return f"{sandbox_path}/ports/{port}/link"


def link_order(expires_seconds: int) -> bytes:
    """Return the body that asks for a link. Raises InvalidRequest."""
    return checked(LinkOrder, expires_seconds=expires_seconds).model_dump_json().encode()


def check_target(path: str, route: str) -> None:
    """Raise InvalidRequest for what no link can lead to."""
    if not path.startswith("/") or "#" in path:
        raise InvalidRequest(f"path has to begin with / and have no fragment, and {path!r} does not do")
    if route not in ("host", "path"):
        raise InvalidRequest(f"route is host or path, not {route!r}")


def linked(view: LinkView, path: str, route: Route) -> str:
    """Return a link as a URL that leads to a path of the server's."""
    base, _, query = (view.url if route == "host" else view.path_url).partition("?")
    return f"{base.removesuffix('/')}{path}{'&' if '?' in path else '?'}{query}"


def ports_of(body: bytes) -> list[PortView]:
    """Return the servers that an answer lists. Raises OutcomeUnknown for one in no known form."""
    try:
        return _LISTED.validate_json(body)
    except ValidationError as error:
        raise OutcomeUnknown("the server's answer is not in the form this version reads") from error
