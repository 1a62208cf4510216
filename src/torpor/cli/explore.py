"""Several ways tried at once, each in a copy of a sandbox, of which the best copy is kept."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torpor.cli import output
from torpor.cli.options import Json, SandboxName, seconds
from torpor.errors import ExploreFailed, InvalidRequest

if TYPE_CHECKING:
    from torpor.sdk import Candidate, ExecResult, Exploration, Outcome, Sandbox

_COLUMNS = ("#", "state", "exit", "score", "seconds", "command")
_REDRAWN_EVERY_S = 0.5
# A branch's call ends by itself with its command's timeout; this is for one that does not.
_GRACE_S = 60.0


def explore(  # noqa: PLR0913 - each is one thing to say about an exploration
    sandbox: SandboxName,
    commands: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="What to try: a shell command each.")],
    *,
    score: Annotated[
        str | None, typer.Option("--score", metavar="COMMAND", help="Run in each branch; its output ends in the score.")
    ] = None,
    score_stdout: Annotated[
        bool, typer.Option("--score-stdout-number", help="The output of a command itself ends in its score.")
    ] = False,
    smallest: Annotated[bool, typer.Option("--min", help="The smallest score is the best.")] = False,
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="How long a command may take.")] = "60",
    ttl: Annotated[
        str, typer.Option("--ttl", metavar="TIME", help="How long a branch lives, whatever becomes of this program.")
    ] = "10m",
    at_once: Annotated[int, typer.Option("--jobs", "-j", min=1, help="So many branches work at a time.")] = 4,
    keep: Annotated[bool, typer.Option("--keep", help="Let the losers live on, until their ttl.")] = False,
    json: Json = False,
) -> int:
    """Try each command in a copy of a sandbox of its own, keep the best copy, and print its id.

    What succeeds can win: the highest score, or else the fastest. The other copies are deleted, all of them if no
    command succeeds or on Ctrl-C. The sandbox itself is as it was.

    Examples:

    * the smaller file wins: `torpor explore demo 'seq 9 >/out' 'seq 5 >/out' --score 'stat -c %s /out' --min`
    * what they print is their score: `torpor explore demo 'echo 3' 'echo 7' --score-stdout-number`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    if score is not None and score_stdout:
        raise InvalidRequest("--score and --score-stdout-number both say what the score is; give one of them")
    limit_s, lives_s = seconds(timeout, "--timeout"), seconds(ttl, "--ttl")
    board = _Board(commands)
    with connection() as client, board.shown():
        box = find(client, sandbox)
        try:
            found = box.explore(
                board.candidates(limit_s),
                score=_last_number if score_stdout else score,
                select="min" if smallest else "max",
                max_concurrency=at_once,
                ttl_seconds=lives_s,
                timeout_seconds=limit_s,
                keep_losers=keep,
                on_outcome=board.ended,
            )
        except ExploreFailed as error:
            if json:
                output.show_json(_told(None, error.outcomes))
            return output.fail(error)
        board.won(found.best)
    _tell(found, json)
    return 0


def _last_number(_: Sandbox, outcome: Outcome) -> float:
    from torpor.sdk.exploring import number_in  # noqa: PLC0415

    return number_in(outcome.stdout)


def _tell(found: Exploration[Sandbox], json: bool) -> None:
    if json:
        output.show_json(_told(found, found.outcomes))
        return
    output.say(found.winner.id)
    for text in found.errors:
        output.warn(text)
    output.note(f"{found.best.label!r} won. Next: torpor exec {found.winner.id} ...")


def _told(found: Exploration[Sandbox] | None, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return an exploration for programs."""
    told = [{name: value for name, value in output.facts(one).items() if name not in _UNTOLD} for one in outcomes]
    return {
        "winner": None if found is None else found.winner.id,
        "tree_id": None if found is None else found.tree_id,
        "reaped": [] if found is None else list(found.reaped),
        "errors": [] if found is None else list(found.errors),
        "outcomes": told,
    }


_UNTOLD = frozenset({"value", "is_broken"})


@dataclass
class _Row:
    command: str
    began: float | None = None
    outcome: Outcome | None = None
    has_won: bool = False

    def state(self) -> str:
        if self.has_won:
            return "winner"
        if self.outcome is None:
            return "waiting" if self.began is None else "running"
        if self.outcome.timed_out:
            return "timed out"
        return "ok" if self.outcome.ok and self.outcome.error is None else "failed"

    def cells(self) -> tuple[str, ...]:
        from torpor.sdk.exploring import cells  # noqa: PLC0415

        command = " ".join(self.command.split())
        if self.outcome is not None:
            _, score, code, took, _ = cells(self.outcome)
            return (self.state(), code, score, took, command)
        took = "" if self.began is None else f"{time.monotonic() - self.began:.1f}"
        return (self.state(), "", "", took, command)


class _Board:
    """How the branches stand, drawn anew again and again where a person looks."""

    def __init__(self, commands: Sequence[str]) -> None:
        self._rows = [_Row(command) for command in commands]
        self._show: Callable[[Sequence[str], Sequence[Sequence[str]]], None] | None = None

    def candidates(self, limit_s: float) -> list[Candidate]:
        """Return what is to be tried; each tells the board when it begins."""
        from torpor.sdk import Candidate  # noqa: PLC0415

        def tried(row: _Row) -> Callable[[Sandbox], ExecResult]:
            def run(box: Sandbox) -> ExecResult:
                row.began = time.monotonic()
                self.draw()
                return box.exec(row.command, timeout_seconds=limit_s)

            return run

        return [Candidate(row.command, tried(row), timeout_seconds=limit_s + _GRACE_S) for row in self._rows]

    def ended(self, outcome: Outcome) -> None:
        """Take in what came of a branch."""
        self._rows[outcome.index].outcome = outcome
        self.draw()

    def won(self, outcome: Outcome) -> None:
        """Take in who has won."""
        self._rows[outcome.index].has_won = True
        self.draw()

    def draw(self) -> None:
        """Draw it as it stands."""
        if self._show is not None:
            self._show(_COLUMNS, [(str(number), *row.cells()) for number, row in enumerate(self._rows, 1)])

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Draw it while the block lasts, with the seconds that pass, if a person looks at stderr."""
        if not output.is_watched():
            yield
            return
        with output.redrawn(beside=True) as self._show, self._ticking():
            self.draw()
            yield

    @contextlib.contextmanager
    def _ticking(self) -> Iterator[None]:
        is_over = threading.Event()

        def tick() -> None:
            while not is_over.wait(_REDRAWN_EVERY_S):
                self.draw()

        thread = threading.Thread(target=tick, name="torpor-explore-board", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
