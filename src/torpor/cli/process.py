"""Commands that run on their own in a sandbox: ps, attach, kill."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torpor.cli import output, wording
from torpor.cli.options import Json, SandboxName
from torpor.errors import ExecTimeout

if TYPE_CHECKING:
    from torpor.sdk import Process, ProcessInfo

TIMEOUT_CODE = 124

ProcessId = Annotated[
    str, typer.Argument(metavar="PROC", help="A process's id, as `torpor ps` shows it.", show_default=False)
]
ProcessIds = Annotated[list[str], typer.Argument(metavar="PROC...", help="Ids of processes.", show_default=False)]


def ps(sandbox: SandboxName, json: Json = False) -> None:
    """List the commands of a sandbox that have an id: those that run, and those whose end is remembered.

    KIND is `process` for what `torpor exec --detach` started, and `exec` for what somebody waits for, or waited for.

    Examples:

    * what runs there, and what has ended: `torpor ps demo`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    with connection() as client:
        infos = [process.info for process in find(client, sandbox).processes()]
    if json:
        output.show_json([record(info) for info in infos])
        return
    output.table(
        ("id", "kind", "state", "ended with", "age", "output", "command"),
        [_row(info) for info in infos],
        empty="No command has an id there. `torpor exec --detach ID COMMAND` starts one.",
        cut={"command"},
    )


def attach(
    sandbox: SandboxName,
    process: ProcessId,
    start: Annotated[
        int | None,
        typer.Option("--from", min=0, metavar="BYTE", help="Begin stdout here.  [default: the oldest byte kept]"),
    ] = None,
) -> int:
    """Listen to a command that runs on its own, and exit with its code when it ends.

    It may have ended already. Ctrl-C leaves it alone; `torpor kill` ends it.

    Examples:

    * listen to it, from its beginning: `job=$(torpor exec -d demo 'make; sleep 1'); torpor attach demo $job`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    with connection() as client:
        found = find(client, sandbox).attach(process)
        try:
            return _pass_on(found, start)
        except ExecTimeout as error:
            output.fail(error)
            return TIMEOUT_CODE
        except KeyboardInterrupt:
            output.note(f"{found.id} runs on. `torpor attach {sandbox} {found.id}` listens again")
            raise


def kill(
    sandbox: SandboxName,
    processes: ProcessIds,
    signal: Annotated[
        str, typer.Option("--signal", "-s", metavar="SIG", help="KILL ends all it started; others go to its group.")
    ] = "KILL",
    json: Json = False,
) -> int:
    """Send commands of a sandbox a signal; KILL unless another one is given.

    Examples:

    * ask it to end: `job=$(torpor exec -d demo 'sleep 600'); torpor kill demo $job -s TERM`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    signalled: list[str] = []
    codes: list[int] = []
    with connection() as client:
        box = find(client, sandbox)
        for id in processes:
            with output.failing(codes):
                box.attach(id).kill(signal)
                signalled.append(id)
                output.note(f"sent {signal.upper()} to {id}")
    if json:
        output.show_json({"signalled": signalled})
    return max(codes, default=0)


def record(info: ProcessInfo) -> dict[str, Any]:
    """Return what programs are told of a process."""
    return info.model_dump(mode="json")


def _pass_on(process: Process, start: int | None) -> int:
    with closing(process.events(start)) as pieces:
        for stream, data in pieces:
            (output.to_stdout if stream == "stdout" else output.to_stderr)(data)
    if process.truncated:
        output.note("some of its output is missing here: it was not kept for long enough")
    return process.exit_code or 0


def _row(info: ProcessInfo) -> tuple[str, ...]:
    return (
        info.id,
        info.kind,
        info.state,
        _how_it_ended(info),
        wording.ago(info.started_at),
        wording.size(info.stdout_bytes + info.stderr_bytes),
        wording.plain(info.command),
    )


def _how_it_ended(info: ProcessInfo) -> str:
    if info.timed_out:
        return "timeout"
    if info.oom_killed:
        return "out of memory"
    return info.signal or ("" if info.exit_code is None else str(info.exit_code))
