"""Options that several commands share, and how their text becomes values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from torpor.cli import output
from torpor.errors import InvalidRequest, Unsupported

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def complete_id(incomplete: str) -> list[tuple[str, str]]:
    """Return the sandboxes to complete a word with, each with a word about it."""
    from torpor.cli.link import ids_beginning_with  # noqa: PLC0415

    return ids_beginning_with(incomplete)


def _complete_snapshot(incomplete: str) -> list[tuple[str, str]]:
    from torpor.cli.link import snapshots_beginning_with  # noqa: PLC0415

    return snapshots_beginning_with(incomplete)


def _complete_template(incomplete: str) -> list[str]:
    from torpor.cli.link import templates_beginning_with  # noqa: PLC0415

    return templates_beginning_with(incomplete)


Json = Annotated[
    bool, typer.Option("--json", help="Print JSON, for programs.", callback=output.use_json, is_eager=True)
]
SandboxName = Annotated[
    str, typer.Argument(metavar="ID", help="A sandbox's id or name.", autocompletion=complete_id, show_default=False)
]
SandboxNames = Annotated[
    list[str],
    typer.Argument(metavar="ID...", help="Ids or names of sandboxes.", autocompletion=complete_id, show_default=False),
]
SnapshotName = Annotated[
    str,
    typer.Argument(
        metavar="SNP", help="A snapshot's id or name.", autocompletion=_complete_snapshot, show_default=False
    ),
]
SnapshotNames = Annotated[
    list[str],
    typer.Argument(
        metavar="SNP...", help="Ids or names of snapshots.", autocompletion=_complete_snapshot, show_default=False
    ),
]
TemplateName = Annotated[
    str, typer.Argument(metavar="TEMPLATE", help="The template to start from.", autocompletion=_complete_template)
]
Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="DIR",
        envvar="TORPOR_HOME",
        help="Where the server keeps its data.  [default: /var/lib/torpor, or the user's data directory]",
        show_default=False,
    ),
]
EnvVars = Annotated[
    list[str] | None,
    typer.Option("--env", "-e", metavar="NAME=VALUE", help="An environment variable; can be repeated."),
]
Labels = Annotated[
    list[str] | None,
    typer.Option("--metadata", "-m", metavar="NAME=VALUE", help="A label; can be repeated."),
]


# How many of a listing are wanted.
Limit = Annotated[int | None, typer.Option("--limit", min=1, max=2**31, help="At most so many, the newest.")]


# What is said of a new sandbox, however it is made.
Name = Annotated[str | None, typer.Option("--name", help="A unique name, which can be used in place of the id.")]
Ttl = Annotated[
    str | None,
    typer.Option("--ttl", metavar="TIME", help="The end of its life: 90, 15m, 2h, 1d from now.  [default: 1h]"),
]
Persistent = Annotated[bool, typer.Option("--persistent", help="Let it live until it is deleted.")]
Cpu = Annotated[int | None, typer.Option("--cpu", help="Virtual processors.  [default: as it was made]")]
Memory = Annotated[int | None, typer.Option("--memory", metavar="MIB", help="Memory.  [default: as it was made]")]
Disk = Annotated[int | None, typer.Option("--disk", metavar="GIB", help="Disk.  [default: as it was made]")]


# What the server does for a new sandbox of its own accord.
Idle = Annotated[
    str | None, typer.Option("--idle", metavar="TIME", help="After so long without use it hibernates: 90, 15m, 2h.")
]
OnIdle = Annotated[str | None, typer.Option("--on-idle", metavar="WHAT", help="What --idle does: hibernate or delete.")]
OnCrash = Annotated[
    str | None,
    typer.Option("--on-crash", metavar="WHAT", help="If its machine dies: fail, or restore its last snapshot."),
]
CheckpointEvery = Annotated[
    str | None, typer.Option("--checkpoint-every", metavar="TIME", help="Take a checkpoint every 5m, say, of running.")
]
CheckpointExecs = Annotated[
    int | None, typer.Option("--checkpoint-execs", metavar="N", help="Take a checkpoint after every N commands.")
]
CheckpointKeep = Annotated[
    int | None, typer.Option("--checkpoint-keep", metavar="N", help="Keep so many of these checkpoints.  [default: 3]")
]


def care(
    idle: str | None,
    on_idle: str | None,
    on_crash: str | None,
    checkpoint_every: str | None,
    checkpoint_execs: int | None,
    checkpoint_keep: int | None,
) -> Any:
    """Return what the options above say, as keywords of `Sandbox.create`; left out what is not said."""
    every = None if checkpoint_every is None else seconds(checkpoint_every, "--checkpoint-every")
    said = {
        "idle_timeout_seconds": None if idle is None else seconds(idle, "--idle"),
        "on_idle": on_idle,
        "on_crash": on_crash,
        "checkpoint_every_seconds": every,
        "checkpoint_every_execs": checkpoint_execs,
        "checkpoint_keep": checkpoint_keep,
    }
    return {name: value for name, value in said.items() if value is not None}


def named_values(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """Return NAME=VALUE texts as a mapping. Raises InvalidRequest for one without a name or `=`."""
    values: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidRequest(f"{option} takes NAME=VALUE, and {text!r} is not that")
        values[name] = value
    return values


def seconds(text: str, option: str) -> int:
    """Return a length of time such as 90, 90s, 15m, 2h or 1d in seconds. Raises InvalidRequest."""
    match = re.fullmatch(r"(\d{1,9})([smhd]?)", text)
    if not match:
        raise InvalidRequest(f"{option} takes a length of time such as 90, 15m, 2h or 1d, and {text!r} is not that")
    return int(match[1]) * _UNITS[match[2]]


def moment(text: str | None, option: str) -> datetime | None:
    """Return a moment such as 2030-01-31T12:00 or, so long ago, 2h or 7d. Raises InvalidRequest."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except OverflowError as error:
        raise InvalidRequest(f"{option} takes a moment of this age, and {text!r} is not") from error
    except ValueError:
        pass
    try:
        return datetime.now().astimezone() - timedelta(seconds=seconds(text, option))
    except OverflowError as error:
        raise InvalidRequest(f"{option} takes a moment of this age, and {text!r} is not") from error
    except InvalidRequest as error:
        raise InvalidRequest(
            f"{option} takes a moment such as 2030-01-31T12:00, or how long ago it was such as 2h, not {text!r}"
        ) from error


@contextmanager
def server_parts() -> Iterator[None]:
    """Import what only the server needs. Raises Unsupported, saying how to install it, where it is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"this needs the server's parts, and {error.name} is not installed", hint="pip install 'torpor[server]'"
        ) from error


def home_folder(home: Path | None) -> Path:
    """Return the folder the server keeps its data in, absolute."""
    from torpor.sdk.settings import default_home  # noqa: PLC0415

    return (home or default_home()).absolute()
