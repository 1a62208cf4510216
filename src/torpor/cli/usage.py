"""What sandboxes used, and what that costs."""

from __future__ import annotations

import csv
import io
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import output, wording
from torpor.cli.options import Json, Labels, complete_id, moment, named_values
from torpor.errors import InvalidRequest
from torpor.model.ids import is_sandbox_id

if TYPE_CHECKING:
    from torpor.sdk import Client, SandboxUsage, Usage, UsageReport

_COLUMNS = ("sandbox", "name", "template", "there", "running", "active", "cpu time", "cost", "always on", "saved")


def usage(
    sandbox: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Only this one, by id or name.", autocompletion=complete_id),
    ] = None,
    metadata: Labels = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="From when: 2030-01-31T12:00, or 2h, 7d ago.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Until when, said in the same way.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, a line for each sandbox.")] = False,
    json: Json = False,
) -> None:
    """Show what sandboxes used, deleted ones too, what that costs, and what it would cost if none ever slept.

    ACTIVE is the part of its time that one was running, and so paid for; SAVED the part of the price of an always-on
    machine that need not be paid. The last line is the sum.

    Examples:

    * what one run cost, its deleted sandboxes too: `torpor usage -m run=42`
    * a week, for a spreadsheet: `torpor usage --since 7d --csv`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    labels, begin, end = named_values(metadata, "--metadata"), moment(since, "--since"), moment(until, "--until")
    if sandbox is not None and labels:
        raise InvalidRequest("--metadata is for all sandboxes, and an id for one", hint="leave out either")
    with connection() as client:
        # An id may be of a sandbox that is deleted, which only the account still knows.
        id = sandbox if sandbox is None or is_sandbox_id(sandbox) else find(client, sandbox).id
        if as_csv:
            output.say(_csv(client, id, labels, begin, end))
        elif id is not None:
            _show_one(client.sandbox_usage(id, begin, end), json)
        else:
            _show_all(client.usage(labels, begin, end), json)


def _show_one(used: SandboxUsage, json: bool) -> None:
    if json:
        output.show_json(output.facts(used))
        return
    output.fields(
        {
            "sandbox": used.sandbox_id,
            "name": used.name or "",
            "from": wording.instant(used.since),
            "until": wording.instant(used.until),
            "running": wording.span(used.running_seconds),
            "paused": wording.span(used.paused_seconds) if used.paused_seconds else "",
            "hibernated": wording.span(used.hibernated_seconds),
            "active": wording.share(used.active_share),
            "cpu time": wording.span(used.cpu_seconds),
            "memory held": f"{used.resident_byte_seconds / 2**30:.1f} GiB seconds",
            "disk": wording.size(used.disk_bytes),
            "cost": wording.money(used.cost),
            "always on": wording.money(used.always_on_cost),
            "saved": wording.share(used.saved_share),
        }
    )


def _show_all(report: UsageReport, json: bool) -> None:
    if json:
        record = {"total": output.facts(report.total), "prices": report.prices.model_dump()}
        output.show_json(record | {"items": [output.facts(item) for item in report.items]})
        return
    rows = [(one.sandbox_id, one.name or "", one.template, *_figures(one)) for one in report.items]
    if rows:
        rows.append(("total", "", "", *_figures(report.total)))
    output.table(_COLUMNS, rows, empty="Nothing was used. `torpor create` makes a sandbox.")
    output.note(f"in {report.prices.currency}; deleted sandboxes are in it")


def _figures(used: Usage) -> tuple[str, ...]:
    there_s = used.running_seconds + used.paused_seconds + used.hibernated_seconds
    return (
        wording.span(there_s),
        wording.span(used.running_seconds),
        wording.share(used.active_share),
        wording.span(used.cpu_seconds),
        wording.money(used.cost),
        wording.money(used.always_on_cost),
        wording.share(used.saved_share),
    )


def _csv(client: Client, id: str | None, labels: dict[str, str], begin: datetime | None, end: datetime | None) -> str:
    """Return the server's CSV; of one sandbox its header and its line."""
    whole = client.usage_csv(labels, begin, end)
    if id is None:
        return whole.rstrip("\r\n")
    header, *rows = csv.reader(io.StringIO(whole))
    place = header.index("sandbox_id")
    text = io.StringIO()
    csv.writer(text).writerows([header, *(row for row in rows if row[place] == id)])
    return text.getvalue().rstrip("\r\n")
