"""How all sandboxes stand at this moment, again and again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import output, wording
from torpor.cli.options import Json

if TYPE_CHECKING:
    from torpor.sdk import Client
    from torpor.wire.usage import LiveList, LiveView

_COLUMNS = ("sandbox", "state", "cpu", "memory", "disk", "in flight", "age", "ends in")


def top(
    every: Annotated[float, typer.Option(min=0.1, max=3600, metavar="SECONDS", help="How often to look.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    json: Json = False,
) -> None:
    """Watch the sandboxes: what each uses of processor, memory and disk, and how many calls are using it.

    CPU is a part of one processor. Ctrl-C ends it. For programs (--json), and where no terminal is, it looks once.

    Examples:

    * until Ctrl-C: `torpor top`
    * one look, for programs: `torpor top --once --json`
    """
    from torpor.cli.link import connection  # noqa: PLC0415

    with connection() as client:
        if json or once or not output.is_shown():
            _look(client, every, json=json)
            return
        try:
            _watch(client, every)
        except KeyboardInterrupt:
            return


def _look(client: Client, every_s: float, *, json: bool) -> None:
    """Print how they stand. What they use of a processor shows only between two looks."""
    before = client.metrics()
    time.sleep(every_s)
    now = client.metrics()
    if json:
        shares = _shares(before, now)
        items = [one.model_dump(mode="json") | {"cpu_share": shares.get(one.sandbox_id)} for one in now.items]
        output.show_json({"at": now.at, "items": items})
        return
    output.table(_COLUMNS, _rows(before, now), empty="There are no sandboxes. `torpor create` makes one.")


def _watch(client: Client, every_s: float) -> None:
    before: LiveList | None = None
    with output.redrawn() as show:
        while True:
            now = client.metrics()
            show(_COLUMNS, _rows(before, now))
            before = now
            time.sleep(every_s)


def _rows(before: LiveList | None, now: LiveList) -> list[tuple[str, ...]]:
    shares = _shares(before, now)
    return [_row(one, shares.get(one.sandbox_id)) for one in now.items]


def _shares(before: LiveList | None, now: LiveList) -> dict[str, float]:
    """Return by id what part of one processor each has used between two looks."""
    if before is None or (elapsed_s := (now.at - before.at).total_seconds()) <= 0:
        return {}
    used = {one.sandbox_id: one.cpu_seconds for one in before.items}
    # What it used is counted from nothing where its host lost count.
    return {
        one.sandbox_id: max(0.0, one.cpu_seconds - used[one.sandbox_id]) / elapsed_s
        for one in now.items
        if one.sandbox_id in used
    }


def _row(one: LiveView, share: float | None) -> tuple[str, ...]:
    return (
        one.name or one.sandbox_id,
        one.status,
        "" if share is None else wording.share(share),
        wording.size(one.resident_bytes) if one.resident_bytes else "",
        wording.size(one.disk_bytes),
        str(one.in_flight or ""),
        wording.ago(one.created_at),
        wording.ago(one.expires_at) if one.expires_at else "never",
    )
