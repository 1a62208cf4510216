"""The one module that prints. Results go to stdout, everything else to stderr; colours only where a person looks."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol

from torpor.cli.wording import plain
from torpor.errors import HostUnreachable, InvalidRequest, SandboxLost, TorporError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import Console
    from rich.progress import TaskID
    from rich.table import Table
    from rich.tree import Tree

_STATE_STYLES = {
    "running": "green",
    "ok": "green",
    "paused": "yellow",
    "warn": "yellow",
    "hibernated": "cyan",
    "failed": "red",
    "bad": "red",
    "deleted": "dim",
}
# A column of cells no longer than this is never folded.
_SHORT = 12
# A column that is folded, or cut, is at least so wide.
_FOLDED = 8
# A table that no person looks at is never folded.
_UNBOUNDED_WIDTH = 1_000_000


class ReaderGone(Exception):
    """Whoever read our output has closed it."""


class _Mode:
    as_json = False


def use_json(value: bool) -> bool:
    """Print for programs from here on. The callback of every `--json`."""
    _Mode.as_json = value
    return value


def is_watched() -> bool:
    """Tell whether a person looks at what goes to stderr."""
    return sys.stderr.isatty() and not _Mode.as_json


def say(text: str) -> None:
    """Print a line of the result. Raises ReaderGone."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise ReaderGone from error


def note(text: str) -> None:
    """Tell a person something that is not the result; nothing if nobody is there to read it."""
    if is_watched():
        _console(sys.stderr).print(text, style="dim", markup=False, highlight=False, soft_wrap=True)


def warn(text: str) -> None:
    """Tell whoever reads stderr something they have to know."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def show_json(value: Any) -> None:
    """Print a value as JSON."""
    say(json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False, default=_plain))


def facts(value: DataclassInstance) -> dict[str, Any]:
    """Return the public fields of a value, for JSON."""
    names = [field.name for field in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in names if not name.startswith("_")}


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str, cut: Collection[str] = frozenset()
) -> None:
    """Print rows under their columns' names, or `empty` on stderr if there are none.

    On a narrow terminal the `cut` columns lose their ends and other long ones are folded; the first stays whole.
    """
    if rows:
        titles = [max(column.split(), key=len) for column in columns]
        # Rather than lose the ends of what has to be read whole, let a narrow terminal break the lines.
        _say_drawn(_drawn(columns, rows, cut), _width_of(titles, rows, gap=1))
    else:
        note(empty)


@contextlib.contextmanager
def redrawn(*, beside: bool = False) -> Iterator[Callable[[Sequence[str], Sequence[Sequence[str]]], None]]:
    """Give a function that shows rows under their columns' names in the place of those it showed before.

    `beside`: on stderr, beside the result.
    """
    from rich.live import Live  # noqa: PLC0415

    with Live(console=_console(sys.stderr if beside else sys.stdout), auto_refresh=False) as live:
        yield lambda columns, rows: live.update(_drawn(columns, rows), refresh=True)


def is_shown() -> bool:
    """Tell whether a person looks at what goes to stdout."""
    return sys.stdout.isatty() and not _Mode.as_json


def _drawn(columns: Sequence[str], rows: Sequence[Sequence[str]], cut: Collection[str] = frozenset()) -> Table:
    """Return a table. On a narrow terminal names of columns take several lines, and columns stand closer."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    is_tight = _width_of(columns, rows, gap=2) > _console(sys.stdout).width
    drawn = Table(box=None, pad_edge=False, padding=(0, 1 if is_tight else 2, 0, 0), header_style="bold")
    for place, column in enumerate(columns):
        overflow: Literal["ellipsis", "fold"] = "ellipsis" if column in cut else "fold"
        title = column.upper().replace(" ", "\n") if is_tight else column.upper()
        drawn.add_column(title, no_wrap=_is_whole(place, rows), overflow=overflow)
    for row in rows:
        drawn.add_row(*(Text(cell, style=_STATE_STYLES.get(cell, "")) for cell in row))
    return drawn


def _is_whole(place: int, rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether a column is never folded: the first, and those of short cells."""
    return place == 0 or all(len(row[place]) <= _SHORT for row in rows)


def _width_of(titles: Sequence[str], rows: Sequence[Sequence[str]], gap: int) -> int:
    """Return how wide a table is at the least: with what is whole in full, and something of the rest."""
    cells = [[len(title), *(len(row[place]) for row in rows)] for place, title in enumerate(titles)]
    widths = [max(lengths) if _is_whole(place, rows) else _FOLDED for place, lengths in enumerate(cells)]
    return sum(widths) + gap * len(titles)


@dataclasses.dataclass(frozen=True)
class Branch:
    """A line of a tree: a name and words about it, and what hangs from it."""

    name: str
    words: Sequence[str]
    branches: Sequence[Branch] = ()


def tree(branches: Sequence[Branch], *, empty: str) -> None:
    """Print trees one under the other, or `empty` on stderr if there are none."""
    from rich.tree import Tree  # noqa: PLC0415

    if not branches:
        note(empty)
        return
    root = Tree("", hide_root=True, guide_style="dim")
    for branch in branches:
        _grow(root, branch)
    _say_drawn(root)


def _grow(tree: Tree, branch: Branch) -> None:
    from rich.text import Text  # noqa: PLC0415

    words = [Text(word, style=_STATE_STYLES.get(word, "")) for word in branch.words if word]
    limb = tree.add(Text("  ").join([Text(branch.name), *words]))
    for one in branch.branches:
        _grow(limb, one)


def _say_drawn(drawn: Table | Tree, width: int = 0) -> None:
    console = _console(sys.stdout)
    console.width = max(console.width, width)
    with console.capture() as held:
        console.print(drawn)
    # A line is filled up to its width, which nobody sees but who pipes it on.
    say("\n".join(line.rstrip() for line in held.get().splitlines()))


def fields(pairs: Mapping[str, str]) -> None:
    """Print names and values, one pair a line, without those that are empty."""
    from rich.text import Text  # noqa: PLC0415

    width = max(map(len, pairs)) + 2
    console = _console(sys.stdout)
    for name, value in pairs.items():
        if value:
            line = Text(name.ljust(width), style="bold") + Text(value, style=f"not bold {_STATE_STYLES.get(value, '')}")
            console.print(line, soft_wrap=True)


def advice(items: Sequence[tuple[str, str]]) -> None:
    """Print what to do about each of several things."""
    from rich.text import Text  # noqa: PLC0415

    console = _console(sys.stdout)
    console.print()
    for name, text in items:
        console.print(Text(f"{name}: ", style="bold") + Text(text, style="not bold"), soft_wrap=True)
    if items:
        console.print()


class Progress(Protocol):
    """One report of work in steps: a step began, or ended after `elapsed_s` seconds."""

    @property
    def step(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def done(self) -> bool: ...
    @property
    def elapsed_s(self) -> float: ...


@contextlib.contextmanager
def progress() -> Iterator[Callable[[Progress], None]]:
    """Give a function that shows steps as they begin and end: alive on a terminal, as plain lines elsewhere."""
    if not is_watched():
        yield _plain_progress
        return
    from rich.progress import Progress as Live  # noqa: PLC0415
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(finished_text="[green]✓[/]"), TextColumn("{task.description}", markup=False))
    with Live(*columns, TimeElapsedColumn(), console=_console(sys.stderr)) as live:
        tasks: dict[str, TaskID] = {}

        def report(event: Progress) -> None:
            if event.step not in tasks:
                tasks[event.step] = live.add_task(f"{event.step:<10} {event.detail}", total=1)
            if event.done:
                live.update(tasks[event.step], completed=1)

        yield report


@contextlib.contextmanager
def moving(text: str, total: int | None, files: int | None) -> Iterator[Callable[[int, int], None]]:
    """Give a function that shows a person how many bytes, and whole files, of so many have been moved.

    None: how many there are is not known. It is gone when the block ends.
    """
    if not is_watched():
        yield _unseen
        return
    from rich import progress  # noqa: PLC0415

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=None),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(compact=True),
    )
    with progress.Progress(*columns, console=_console(sys.stderr), transient=True, expand=True) as live:
        task = live.add_task(text, total=total)

        def show(count: int, done: int) -> None:
            said = text if files in (None, 1) else f"{text} {done}/{files}"
            live.update(task, completed=count, description=said)

        yield show


def _unseen(count: int, done: int) -> None:
    """Show nothing: nobody looks."""
    del count, done


def _plain_progress(event: Progress) -> None:
    if event.done:
        warn(f"{event.step}: done in {event.elapsed_s:.1f} s")
    else:
        warn(f"{event.step}: {event.detail}")


def to_stdout(chunk: bytes) -> None:
    """Pass a command's stdout through. Raises ReaderGone."""
    pass_through(sys.stdout.buffer, chunk)


def to_stderr(chunk: bytes) -> None:
    """Pass a command's stderr through. Raises ReaderGone."""
    pass_through(sys.stderr.buffer, chunk)


def pass_through(stream: IO[bytes], chunk: bytes) -> None:
    """Write bytes as they are, at once. Raises ReaderGone if nobody reads them any more."""
    try:
        stream.write(chunk)
        stream.flush()
    except BrokenPipeError as error:
        raise ReaderGone from error


@contextlib.contextmanager
def busy(text: str) -> Iterator[None]:
    """Show a person that something is under way."""
    if not is_watched():
        yield
        return
    with _console(sys.stderr).status(text, spinner="dots"):
        yield


def fail(error: BaseException) -> int:
    """Print an error as one line on stderr, or for programs as the API's error body, and return the exit code."""
    known = error if isinstance(error, TorporError) else InvalidRequest(_sentence(error))
    if _Mode.as_json:
        from torpor.wire.errors import to_body  # noqa: PLC0415 - it takes longer than a completion may

        sys.stderr.write(to_body(known).model_dump_json(exclude_none=True) + "\n")
        return 1
    complain(known.message, known.hint or _way_out(known))
    return 1


@contextlib.contextmanager
def failing(codes: list[int]) -> Iterator[None]:
    """Tell of what goes wrong in the block, note its exit code, and go on after it; but not without a server."""
    try:
        yield
    except HostUnreachable:
        raise
    except TorporError as error:
        codes.append(fail(error))


def complain(message: str, hint: str | None = None) -> None:
    """Print `error: sentence. hint` on stderr, red where a person looks."""
    start = "\x1b[1;31merror:\x1b[0m" if is_watched() and _has_colour() else "error:"
    # It may repeat what a guest, or somebody's shell, has said.
    line = plain(message).rstrip(".")
    sys.stderr.write(f"{start} {line}." + (f" {plain(hint)}" if hint else "") + "\n")


def _way_out(error: TorporError) -> str | None:
    """Return what a person can do where the server did not say it."""
    if isinstance(error, SandboxLost) and error.last_snapshot:
        return f"`torpor restore {error.last_snapshot}` makes a new one from its last snapshot"
    return None


def gone() -> int:
    """Let nothing more be written to a reader that has gone, and return the exit code a shell gives for that."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    return 141


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        return f"{where}{error.strerror[:1].lower()}{error.strerror[1:]}"
    return str(error)


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return facts(value)
    return value.isoformat() if isinstance(value, datetime) else dict(value)  # type: ignore[call-overload]


def _has_colour() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _console(stream: IO[str]) -> Console:
    from rich.console import Console  # noqa: PLC0415

    return Console(file=stream, highlight=False, width=None if stream.isatty() else _UNBOUNDED_WIDTH)
