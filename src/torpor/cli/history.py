"""What a sandbox said on its console, and what happened to it: logs."""

from __future__ import annotations

import json as jsons
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import output, wording
from torpor.cli.options import Json, complete_id
from torpor.errors import InvalidRequest
from torpor.model.ids import is_sandbox_id

if TYPE_CHECKING:
    from torpor.sdk import Event


def logs(
    sandbox: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A sandbox's id or name.", autocompletion=complete_id)
    ] = None,
    events: Annotated[bool, typer.Option("--events", help="Show what happened to it; without an ID, to all.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="With --events: go on as more happens.")] = False,
    types: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="With --events: only those, such as state.")
    ] = None,
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="With --events: what came after this one.")
    ] = None,
    json: Json = False,
) -> None:
    """Show what a sandbox's machine wrote on its console, or with --events what happened to it.

    With --json each event is a JSON object on a line of its own.

    Examples:

    * what its kernel and the guest agent said: `torpor logs demo`
    * what happened to it: `torpor logs demo --events`
    * the changes of state of all: `torpor logs --events --type state`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    if not events and (follow or types or cursor is not None):
        raise InvalidRequest("--follow, --type and --cursor are about events", hint="add --events")
    with connection() as client:
        if not events:
            if sandbox is None:
                raise InvalidRequest("no sandbox is named", hint="give its id, or --events for the events of all")
            text = find(client, sandbox).logs()
            text = text.rstrip("\n")
            # A program gets it as it is; a person's terminal would do what a guest writes there.
            said = wording.shown(text.replace("\r\n", "\n")) if output.is_shown() else text
            output.show_json({"log": text}) if json else output.say(said)
            return
        # An id may be of a sandbox that is deleted, whose events are still there.
        of = sandbox if sandbox is None or is_sandbox_id(sandbox) else find(client, sandbox).id
        for event in client.events(cursor, sandbox=of, follow=follow, types=types or ()):
            output.say(event.model_dump_json() if json else _line(event))


def _line(event: Event) -> str:
    data = dict(event.data)
    said = ""
    if event.type == "state":
        said = f"{data.pop('from', None) or 'new'} -> {data.pop('to', '?')} "
    rest = " ".join(f"{name}={_worded(value)}" for name, value in data.items() if value is not None)
    return f"{wording.instant(event.at)}  {event.sandbox_id}  {event.type:<11}  {said}{rest}".rstrip()


def _worded(value: object) -> str:
    text = wording.plain(value) if isinstance(value, str) else jsons.dumps(value)
    return jsons.dumps(text, ensure_ascii=False) if " " in text else text
