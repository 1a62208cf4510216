"""Servers in a sandbox: ports, url."""

from __future__ import annotations

from typing import Annotated

import typer

from torpor.cli import output, wording
from torpor.cli.options import Json, SandboxName, seconds


def ports(sandbox: SandboxName, json: Json = False) -> None:
    """List the TCP ports on which servers in a sandbox listen. Wakes it.

    Examples:

    * who listens there: `torpor ports demo`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    with connection() as client:
        found = find(client, sandbox).ports()
    if json:
        output.show_json([port.model_dump(mode="json") for port in found])
        return
    output.table(
        ("port", "address", "process", "where"),
        [(str(one.port), one.address, wording.plain(one.process or ""), one.url or "only inside") for one in found],
        empty="Nobody listens on a TCP port there.",
    )


def url(
    sandbox: SandboxName,
    port: Annotated[int, typer.Argument(metavar="PORT", help="A TCP port.", min=1, max=65535, show_default=False)],
    path: Annotated[str, typer.Option("--path", metavar="PATH", help="Where on that server it leads.")] = "/",
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME", help="For how long it is good: 90, 15m, 2h, 1d.")
    ] = "1h",
    by_path: Annotated[
        bool, typer.Option("--by-path", help="On the server's own host, for what cannot look `*.localhost` up.")
    ] = False,
    json: Json = False,
) -> None:
    """Print a link to a server in a sandbox: whoever has it may use that server. Following it wakes the sandbox.

    Examples:

    * for a browser: `torpor url demo 8080 --expires 15m`
    * for curl, on machines that cannot look *.localhost up: `torpor url demo 8080 --by-path`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    lasts_s = seconds(expires, "--expires")
    with connection() as client:
        link = find(client, sandbox).url(port, path, expires_seconds=lasts_s, route="path" if by_path else "host")
    if json:
        output.show_json({"url": link})
        return
    output.say(link)
