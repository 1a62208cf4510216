"""What a sandbox may reach: said when it is made, shown and changed afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import output
from torpor.cli.options import Json, SandboxName
from torpor.errors import InvalidRequest

if TYPE_CHECKING:
    from torpor.sdk import NetworkInfo
    from torpor.sdk.results import Reach

_ALLOW = "allow:"

Network = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="WHAT",
        help="What it may reach: internet, none, or allow:HOST,HOST...  [default: internet, if the server can; a fork"
        " or restore, what the original might]",
    ),
]
Allowed = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="HOST",
        help="Let it reach this and nothing else: code.example.com, '*.example.org', 198.51.100.0/24. Can be repeated.",
    ),
]


def reach_of(network: str | None, allow: Sequence[str] | None) -> str | list[str] | None:
    """Return what the options above say, None if nothing. Raises InvalidRequest if both say something."""
    if network is not None and allow:
        raise InvalidRequest("--allow is a network of its own, so it cannot be given together with another one")
    if allow:
        return list(allow)
    if network is not None and network.startswith(_ALLOW):
        return [entry.strip() for entry in network.removeprefix(_ALLOW).split(",") if entry.strip()]
    return network


def reach_told(reach: Reach) -> str:
    """Return what may be reached, for people."""
    return reach if isinstance(reach, str) else f"only {', '.join(reach)}"


def network(
    sandbox: SandboxName,
    what: Annotated[
        str | None,
        typer.Argument(metavar="WHAT", help="Set it: internet, none, or allow:HOST,HOST...", show_default=False),
    ] = None,
    allow: Allowed = None,
    json: Json = False,
) -> None:
    """Show what a sandbox may reach and what it could not, or set it. A sandbox that hibernates is not woken.

    Examples:

    * what it may reach, and what it was denied: `torpor network demo`
    * these, and nothing else: `torpor network demo --allow code.example.com --allow '*.files.example.com'`
    * nothing, from now on: `torpor network demo none`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    reach = reach_of(what, allow)
    with connection() as client:
        found = find(client, sandbox)
        told = found.network() if reach is None else found.set_network(reach)
    if json:
        output.show_json(output.facts(told) | {"denied": [one.model_dump() for one in told.denied]})
        return
    _tell(told)


def _tell(told: NetworkInfo) -> None:
    output.fields({"network": reach_told(told.network), "address": told.guest_ip or ""})
    if told.denied:
        rows = [(str(one.count), one.reason, one.destination or "") for one in told.denied]
        output.table(("denied", "reason", "to"), rows, empty="")
