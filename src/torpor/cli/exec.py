"""Run a command in a sandbox as if it ran here: same output, same exit code."""

from __future__ import annotations

import dataclasses
import os
import select
import stat
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand, TyperOption

from torpor.cli import output
from torpor.cli.options import EnvVars, Json, SandboxName, named_values
from torpor.cli.process import TIMEOUT_CODE, record
from torpor.errors import ExecTimeout, InvalidRequest

if TYPE_CHECKING:
    from typer._click.core import Context

    from torpor.sdk import ExecResult, Process, Sandbox

_SILENT_PIPE_S = 10.0


def exec_command(  # noqa: PLR0913 - each is one thing to say about a command
    sandbox: SandboxName,
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="One word is run by a shell, several as they are.", show_default=False),
    ],
    *,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="End it, and all it started, after this.")
    ] = None,
    cwd: Annotated[str | None, typer.Option(metavar="DIR", help="The folder it runs in.")] = None,
    env: EnvVars = None,
    user: Annotated[str | None, typer.Option(help="The guest's user it runs as.  [default: root]")] = None,
    no_stdin: Annotated[bool, typer.Option("--no-stdin", "-n", help="Do not read stdin.")] = False,
    wait_stdin: Annotated[
        bool, typer.Option("--stdin", "-i", help="Pass stdin on as it comes, however long and however much.")
    ] = False,
    terminal: Annotated[bool, typer.Option("--terminal", "-t", help="Give it a terminal, joined to this one.")] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not wait for it: print its id and end.")] = False,
    json: Json = False,
) -> int:
    """Run a command and exit with its code; 124 if it took too long. Ctrl-C ends it.

    What is piped in becomes its stdin (16 MiB at most, and any amount with -i). Options stand before the command; from
    its first word on everything belongs to it. A restart of the server in the meantime is waited out. With `--detach`
    it runs on alone: `torpor attach` listens to it, `torpor ps` shows it, `torpor kill` ends it.

    Examples:

    * one word is run by a shell: `torpor exec demo 'cd /work && ls'`
    * several are run as they are: `torpor exec demo --timeout 60 -- python3 -c 'print(1)'`
    * what is piped in is its stdin: `echo 'print(2)' | torpor exec demo python3`
    * as it comes, and however much: `seq 9 | torpor exec -i demo cat`
    * on a terminal, with keys, size and Ctrl-C: `torpor exec -it demo python3`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    order = _Order(
        command[0] if len(command) == 1 else command,
        named_values(env, "--env"),
        timeout,
        cwd,
        user,
    )
    if terminal and (detach or json):
        raise InvalidRequest("-t joins a terminal to this one, which goes with neither --detach nor --json")
    is_streamed = wait_stdin and not (detach or json or no_stdin)
    if not (terminal or is_streamed or no_stdin):
        order = dataclasses.replace(order, stdin=piped_stdin(patient=wait_stdin))
    with connection() as client:
        box = find(client, sandbox)
        if terminal:
            return _on_terminal(box, order, with_stdin=not no_stdin)
        if is_streamed:
            return _streamed(box, order)
        return _start(box, order, json=json) if detach else _run(box, order, json=json)


@dataclasses.dataclass(frozen=True)
class _Order:
    """What is to be run, as it was typed."""

    command: str | list[str]
    env: dict[str, str]
    timeout_s: float | None
    cwd: str | None
    user: str | None
    stdin: bytes | None = None


def _run(box: Sandbox, order: _Order, *, json: bool) -> int:
    try:
        result = box.exec(
            order.command,
            timeout_seconds=order.timeout_s,
            cwd=order.cwd,
            env=order.env,
            user=order.user,
            stdin=order.stdin,
            binary=True,
            on_stdout=None if json else output.to_stdout,
            on_stderr=None if json else output.to_stderr,
        )
    except ExecTimeout as error:
        output.fail(error)
        return TIMEOUT_CODE
    if json:
        output.show_json(_record(result))
    return result.exit_code


def _on_terminal(box: Sandbox, order: _Order, *, with_stdin: bool) -> int:
    from torpor.cli.terminal import HANGUP_S, join, size_here  # noqa: PLC0415

    rows, cols = size_here()
    pty = box.pty(
        order.command,
        rows=rows,
        cols=cols,
        timeout_seconds=order.timeout_s,
        cwd=order.cwd,
        env=order.env,
        user=order.user,
        hangup_seconds=HANGUP_S,
    )
    try:
        return join(box, pty, with_stdin=with_stdin)
    except ExecTimeout as error:
        output.fail(error)
        return TIMEOUT_CODE


def _streamed(box: Sandbox, order: _Order) -> int:
    from torpor.cli.streamed import talk  # noqa: PLC0415

    try:
        return talk(lambda: _started(box, order, stdin=True))
    except ExecTimeout as error:
        output.fail(error)
        return TIMEOUT_CODE


def _started(box: Sandbox, order: _Order, *, stdin: bytes | bool) -> Process:
    return box.start(
        order.command,
        timeout_seconds=order.timeout_s,
        cwd=order.cwd,
        env=order.env,
        user=order.user,
        stdin=stdin,
    )


def _start(box: Sandbox, order: _Order, *, json: bool) -> int:
    process = _started(box, order, stdin=False if order.stdin is None else order.stdin)
    if json:
        output.show_json(record(process.info))
    else:
        output.say(process.id)
        output.note(f"it runs on its own. `torpor attach {box.name or box.id} {process.id}` listens to it")
    return 0


class ExecCommand(TyperCommand):
    """`exec`: its options end where the command begins, so that the command's own are not taken for ours."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse the words after `exec`."""
        options = (param for param in self.params if isinstance(param, TyperOption) and not param.is_flag)
        return super().parse_args(ctx, command_apart(args, {name for option in options for name in option.opts}))


def command_apart(words: Sequence[str], take_a_value: Collection[str]) -> list[str]:
    """Return the words with "--" before the command, which is the second that is no option nor an option's value."""
    positions, is_value = 0, False
    for at, word in enumerate(words):
        if is_value:
            is_value = False
        elif word == "--":
            break
        elif word.startswith("-"):
            is_value = word in take_a_value
        elif positions == 1:
            return [*words[:at], "--", *words[at:]]
        else:
            positions = 1
    return list(words)


def piped_stdin(*, patient: bool = False) -> bytes | None:
    """Return what is piped in, or None if stdin is a terminal or closed.

    Raises InvalidRequest beyond 16 MiB and, unless `patient`, if a pipe stays silent: it may be one that somebody just
    left open, and to wait for its end would be for ever.
    """
    try:
        descriptor = sys.stdin.fileno()
        mode = os.fstat(descriptor).st_mode
    except (AttributeError, OSError, ValueError):
        return None
    if sys.stdin.isatty():
        return None
    if (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) and not patient:
        _wait_first_byte(descriptor)
    from torpor.wire.public import MAX_STDIN_BYTES  # noqa: PLC0415

    data = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
    if len(data) > MAX_STDIN_BYTES:
        raise InvalidRequest(
            f"more than {MAX_STDIN_BYTES >> 20} MiB is piped in, which is the most a command's stdin can take",
            hint="with -i it is passed on as it comes, however much it is",
        )
    return data


def _wait_first_byte(descriptor: int) -> None:
    if select.select([descriptor], [], [], _SILENT_PIPE_S)[0]:
        return
    raise InvalidRequest(
        f"stdin is a pipe, and for {_SILENT_PIPE_S:.0f} s nothing has come through it",
        hint="-n runs the command without it, -i waits for it however long it takes",
    )


def _record(result: ExecResult) -> dict[str, object]:
    record = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    return {name: value for name, value in record.items() if not isinstance(value, bytes)}
