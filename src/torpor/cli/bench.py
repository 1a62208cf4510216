"""What this machine reaches."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from torpor.cli import output, record, up
from torpor.cli.options import Home, Json, home_folder, server_parts
from torpor.errors import NotFound
from torpor.wire.home import KEY_FILE

if TYPE_CHECKING:
    from torpor.bench.report import Report
    from torpor.bench.subject import Local
    from torpor.sdk import Client
    from torpor.wire.public import TemplateView


def bench(  # noqa: PLR0913 - each is one thing to say about a run
    *,
    template: Annotated[str, typer.Option(metavar="NAME", help="The template to measure with.")] = "agent",
    n: Annotated[int | None, typer.Option("--n", min=1, help="Rounds of every measure.  [default: by measure]")] = None,
    only: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Only these measures, such as create,wake.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few rounds: under two minutes.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw the figures into this file too.")] = None,
    home: Home = None,
    json: Json = False,
) -> int:
    """Measure create, exec, hibernate, wake, snapshot, restore and fork on this machine, beside the bare work.

    Uses the server that runs, or starts one for as long as it takes. Everything it makes is deleted. Takes five to ten
    minutes; keep the machine quiet meanwhile. Exits with 1 if a measure failed.

    Examples:

    * under two minutes, with a drawing: `torpor bench --quick --plot figures.svg`
    * two measures, often: `torpor bench --only create,wake --n 50`
    """
    import logging  # noqa: PLC0415

    with server_parts():
        from torpor.bench.plan import plan  # noqa: PLC0415
        from torpor.bench.plot import check_name, draw  # noqa: PLC0415
        from torpor.bench.run import measure  # noqa: PLC0415
        from torpor.bench.subject import Subject  # noqa: PLC0415
        from torpor.cli.logs import log_to_stderr  # noqa: PLC0415

    log_to_stderr(logging.WARNING)
    chosen = plan(only, n, quick=quick)
    if plot is not None:
        check_name(plot)
    with _ended_in_order(), _server(home_folder(home), template) as (client, local):
        view = _template(client, template)
        with output.progress() as report:
            taken = measure(Subject(client, view, local), chosen, report)
    _show(taken, json)
    if plot is not None:
        plot.write_text(draw(taken), encoding="utf-8")
        output.note(f"The plot is in {plot}.")
    return 1 if taken.failed else 0


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let a request to end be what Ctrl-C is: what was made is deleted, and a server that was started stopped."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _server(home: Path, template: str) -> Iterator[tuple[Client, Local | None]]:
    """Give a client of the configured server, and what can be seen of it here; one that does not run is started."""
    from torpor.sdk import Client  # noqa: PLC0415

    if os.environ.get("TORPOR_API"):
        with Client() as client:
            yield client, _seen(home, template, client.api, fresh=False)
        return
    running = record.read(home)
    if running is None:
        with output.busy("starting a server ..."):
            up.start(home, ["--port", "0"])
    started, running = running is None, running or record.read(home)
    if running is None:
        raise NotFound(f"the server of {home} has ended", hint=f"its log is {home / up.LOG_FILE}")
    try:
        with Client(running.url, (home / KEY_FILE).read_text().strip()) as client:
            local = _seen(home, template, running.url, fresh=started)
            if started and local is not None:
                local = replace(local, restart=partial(_restart, home, running.url))
            yield client, local
    finally:
        if started and (last := record.read(home)) is not None:
            up.stop(last)


def _restart(home: Path, url: str) -> None:
    """Kill the server as a crash would, and start another one at the same address."""
    running = record.read(home)
    if running is not None:
        process = os.pidfd_open(running.pid)
        signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [])
        os.close(process)
        with suppress(ChildProcessError):
            os.waitpid(running.pid, 0)
    up.start(home, ["--port", str(urlsplit(url).port or 0)])


def _seen(home: Path, template: str, url: str, *, fresh: bool) -> Local | None:
    """Return the server's host, if its data directory is here and may be written. Raises NotFound for no template."""
    from torpor.bench.floors import Floors  # noqa: PLC0415
    from torpor.bench.machine import describe, layout_of  # noqa: PLC0415
    from torpor.bench.subject import Local  # noqa: PLC0415
    from torpor.model.ids import TemplateName  # noqa: PLC0415
    from torpor.storage.templates import Templates  # noqa: PLC0415

    running = record.read(home)
    if running is None or running.url != url or not os.access(home, os.W_OK):
        return None
    layout = layout_of(home)
    made_with = Templates(layout).get(TemplateName(template)).fingerprint
    vmm = f"{made_with.vmm} {made_with.version}, CPU model {made_with.cpu_model}"
    return Local(layout, running.pid, describe(layout, vmm), Floors(layout, template), fresh)


def _template(client: Client, name: str) -> TemplateView:
    views = client.templates.list()
    for view in views:
        if view.name == name:
            return view
    there = ", ".join(view.name for view in views) or "none"
    raise NotFound(f"there is no template {name!r} (there is: {there})", hint=f"run `torpor template build {name}`")


def _show(taken: Report, json: bool) -> None:
    from torpor.bench.report import COLUMNS  # noqa: PLC0415

    if json:
        output.show_json(taken.as_json())
        return
    output.fields(taken.circumstances())
    output.say("")
    output.table(COLUMNS, taken.rows(), empty="Nothing was measured.")
    output.advice(taken.remarks())
    output.say(taken.verdict())
