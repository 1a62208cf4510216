"""The audit log: who did what."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import output, wording
from torpor.cli.options import Json

if TYPE_CHECKING:
    from torpor.wire.access import AuditView


def audit(
    limit: Annotated[int, typer.Option("--limit", min=1, max=2**31, help="At most so many, the newest.")] = 100,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="Only change, use or refused.", show_default=False)
    ] = None,
    workspace: Annotated[
        str | None,
        typer.Option(
            "--workspace", metavar="NAME", help="Of another workspace, or * for all; for admins.", show_default=False
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show who changed what, the newest first: with which key, from where, and what was answered.

    With --json each entry is a JSON object on a line of its own.

    Examples:

    * what happened last: `torpor audit --limit 20`
    * who was turned away: `torpor audit --kind refused`
    * all changes on this server, for an archive: `torpor audit --kind change --workspace '*' --json`
    """
    from torpor.cli.link import connection  # noqa: PLC0415

    with connection() as client:
        found = islice(client.audit(workspace, kind), limit)
        if json:
            for entry in found:
                output.say(entry.model_dump_json())
            return
        output.table(
            ("at", "kind", "key", "from", "what", "about", "answer"),
            [_row(entry) for entry in found],
            empty="Nothing was changed yet.",
            cut={"about"},
        )


def _row(entry: AuditView) -> tuple[str, ...]:
    what = entry.action if entry.count == 1 else f"{entry.action} x {entry.count}"
    answer = "broken off" if entry.status is None else str(entry.status)
    about = " ".join(wording.plain(target) for target in entry.targets)
    return (wording.instant(entry.at), entry.kind, entry.key or "", entry.client, wording.plain(what), about, answer)
