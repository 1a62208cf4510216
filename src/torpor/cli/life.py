"""How long a sandbox lives, and what idleness does to it: ttl, idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import output, wording
from torpor.cli.options import Json, SandboxName, seconds
from torpor.cli.sandbox import called, when_idle

if TYPE_CHECKING:
    from torpor.sdk import SandboxInfo

PERSISTENT, NEVER = "persistent", "never"


def ttl(
    sandbox: SandboxName,
    end: Annotated[
        str | None,
        typer.Argument(metavar="[TIME]", help="90, 15m, 2h, 1d from now, or `persistent`.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Give a sandbox a new end of its life, counted from now, or none; without TIME, say when it ends.

    Examples:

    * when does it end: `torpor ttl demo`
    * in two hours: `torpor ttl demo 2h`
    * never: `torpor ttl demo persistent`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    wanted = None if end in (None, PERSISTENT) else seconds(end, "TIME")
    with connection() as client:
        box = find(client, sandbox)
        info = box.info if end is None else box.set_ttl(wanted)
    if json:
        output.show_json(output.facts(info))
    elif end is None:
        output.say(_end(info))
    else:
        output.note(f"{called(box)} {_end(info)}")


def idle(
    sandbox: SandboxName,
    time: Annotated[
        str | None, typer.Argument(metavar="[TIME]", help="90, 15m, 2h, 1d, or `never`.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Let a sandbox hibernate (or be deleted, if it was made so) when nothing has used it for TIME, or never.

    Without TIME, say how it is now.

    Examples:

    * it sleeps when nobody has used it for so long: `torpor idle demo 15m`
    * it does not: `torpor idle demo never`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    wanted = None if time in (None, NEVER) else seconds(time, "TIME")
    with connection() as client:
        box = find(client, sandbox)
        info = box.info if time is None else box.set_idle(wanted)
    if json:
        output.show_json(output.facts(info))
    elif time is None:
        output.say(when_idle(info) or NEVER)
    else:
        output.note(f"{called(box)}: {when_idle(info) or 'idleness changes nothing'}")


def _end(info: SandboxInfo) -> str:
    return f"ends in {wording.ago(info.expires_at)}" if info.expires_at else "lives until it is deleted"
