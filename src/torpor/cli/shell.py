"""A shell in a sandbox, on a terminal joined to the person's own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import output
from torpor.cli.exec import piped_stdin
from torpor.cli.options import SandboxName

if TYPE_CHECKING:
    from torpor.sdk import Sandbox


def shell(
    sandbox: SandboxName,
    user: Annotated[str | None, typer.Option(help="The guest's user.  [default: root]")] = None,
    cwd: Annotated[str | None, typer.Option(metavar="DIR", help="The folder to begin in.  [default: home]")] = None,
) -> int:
    """Open a shell in a sandbox, and exit with its code.

    It is the user's login shell on a terminal like this one: full-screen programs work, Ctrl-C goes to the sandbox, and
    the window may change its size. `~.` at the beginning of a line leaves it, and hangs it up. It sleeps and wakes with
    the sandbox, and a restart of the server is waited out. What is piped in runs as one script.

    Examples:

    * a terminal in it: `torpor shell demo`
    * a script: `echo 'cd /work && ls' | torpor shell demo`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    with connection() as client:
        box = find(client, sandbox)
        if not sys.stdin.isatty():
            return _run_script(box, user, cwd)
        from torpor.cli.terminal import HANGUP_S, join, size_here  # noqa: PLC0415

        rows, cols = size_here()
        with output.busy(f"opening a shell in {box.name or box.id} ..."):
            pty = box.pty(rows=rows, cols=cols, user=user, cwd=cwd, hangup_seconds=HANGUP_S)
        return join(box, pty)


def _run_script(box: Sandbox, user: str | None, cwd: str | None) -> int:
    """Run what is piped in as one script, which is what a shell does with it."""
    result = box.exec(
        ["/bin/sh", "-s"],
        user=user,
        cwd=cwd,
        stdin=piped_stdin(patient=True) or b"",
        binary=True,
        on_stdout=output.to_stdout,
        on_stderr=output.to_stderr,
    )
    return result.exit_code
