"""A simple shell in a sandbox: line after line, each run as one command, with folder and exported variables kept."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import output
from torpor.cli.exec import piped_stdin
from torpor.cli.options import SandboxName
from torpor.errors import ExecTimeout, Failed, NotFound, Refused

if TYPE_CHECKING:
    from torpor.sdk import Sandbox

# $1 is the file that remembers, $2 the line, $3 the code of the line before. What a line exports and where it ends is
# written down when it has ended, also when it ends by `exit`, and taken up by the next one.
_STEP = """
torpor_memory=$1 torpor_line=$2 torpor_last=${3:-0}
set --
if [ -r "$torpor_memory.env" ]; then . "$torpor_memory.env"; fi
if [ -r "$torpor_memory.cwd" ]; then cd -- "$(cat "$torpor_memory.cwd")" || :; fi
torpor_remember() { (umask 077; export -p >"$torpor_memory.env"; pwd >"$torpor_memory.cwd"); }
trap 'torpor_code=$?; torpor_remember; exit $torpor_code' EXIT
(exit "$torpor_last")
eval "$torpor_line"
"""


def shell(
    sandbox: SandboxName,
    user: Annotated[str | None, typer.Option(help="The guest's user.  [default: root]")] = None,
) -> int:
    """Run line after line in a sandbox.

    Each line is a command of its own: the folder and exported variables are kept from line to line, background
    processes live on, but there is no terminal, so full-screen programs do not work. Ctrl-C ends the line, Ctrl-D or
    `exit` the shell. What is piped in runs as one script.

    Examples: `torpor shell ID`, `torpor shell ID <script.sh`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    with connection() as client:
        box = find(client, sandbox)
        if not sys.stdin.isatty():
            return _run_script(box, user)
        session = _Session(box, user)
        output.note(
            f"{box.name or box.id}: each line runs as a command of its own; folder and exported variables are kept. "
            "Ctrl-D ends."
        )
        try:
            for line in _lines(session):
                if (code := _exit_code(line, session.code)) is not None:
                    return code
                session.run(line)
        finally:
            session.forget()
    return session.code


def _run_script(box: Sandbox, user: str | None) -> int:
    """Run what is piped in as one script, which is what a shell does with it."""
    result = box.exec(
        ["/bin/sh", "-s"],
        user=user,
        stdin=piped_stdin(patient=True) or b"",
        binary=True,
        on_stdout=output.to_stdout,
        on_stderr=output.to_stderr,
    )
    return result.exit_code


def _exit_code(line: str, last: int) -> int | None:
    """Return what `exit` or `exit N` ends the shell with; None for any other line."""
    match line.split():
        case ["exit"]:
            return last
        case ["exit", code] if code.isdecimal():
            return int(code) & 0xFF
        case _:
            return None


class _Session:
    """What is kept between lines: in the guest, in two small files."""

    def __init__(self, sandbox: Sandbox, user: str | None) -> None:
        self._sandbox = sandbox
        self._user = user
        self._memory = f"/tmp/.torpor-shell-{secrets.token_hex(6)}"  # noqa: S108 - in the guest
        self.code = 0

    def prompt(self) -> str:
        """Return what stands before the next line."""
        return f"{self._sandbox.name or self._sandbox.id}:{self._cwd()}$ "

    def run(self, line: str) -> None:
        """Run one line, with its output passed through."""
        try:
            result = self._sandbox.exec(
                ["/bin/sh", "-c", _STEP, "sh", self._memory, line, str(self.code)],
                user=self._user,
                binary=True,
                on_stdout=output.to_stdout,
                on_stderr=output.to_stderr,
            )
            self.code = result.exit_code
        except KeyboardInterrupt:
            output.warn("")
            self.code = 130
        except ExecTimeout as error:
            self.code = output.fail(error)

    def forget(self) -> None:
        """Remove the two files. A sandbox that is gone has none."""
        try:
            self._sandbox.exec(["rm", "-f", f"{self._memory}.env", f"{self._memory}.cwd"])
        except (Refused, Failed) as error:
            output.fail(error)

    def _cwd(self) -> str:
        try:
            return self._sandbox.filesystem.read_text(f"{self._memory}.cwd").strip()
        except NotFound:
            # Before the first line.
            return "~"


def _lines(session: _Session) -> Iterator[str]:
    # Imported for its effect: arrow keys and a history in `input`.
    import readline  # noqa: F401, PLC0415

    while True:
        try:
            line = input(session.prompt()).strip()
        except EOFError:
            output.warn("")
            return
        except KeyboardInterrupt:
            output.warn("")
            continue
        if line:
            yield line
