"""Volumes: create, list, show, rm."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torpor.cli import output, wording
from torpor.cli.options import Json
from torpor.errors import InvalidRequest

if TYPE_CHECKING:
    from torpor.sdk import Volume

app = typer.Typer(
    help="Volumes: named disks that outlive sandboxes. `torpor create --volume NAME` attaches one.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_COLUMNS = ("name", "size", "on disk", "age", "attached to")
_MIB, _UNITS = 1024**2, {"": 1, "m": 1, "g": 1024, "t": 1024 * 1024}

VolumeName = Annotated[str, typer.Argument(metavar="NAME", help="A volume's name.", show_default=False)]
Attached = Annotated[
    list[str] | None,
    typer.Option(
        "--volume",
        metavar="NAME[:PATH][:ro]",
        help="A volume to attach, at /volumes/NAME or PATH, to write or only to read; can be repeated.",
    ),
]


@app.command()
def create(
    name: VolumeName,
    size: Annotated[
        str, typer.Option("--size", metavar="SIZE", help="The room in it: 500m (MiB), 10g (GiB), or just MiB.")
    ] = "1g",
    json: Json = False,
) -> None:
    """Make a volume and print its name. It takes up on the host what is written to it.

    Examples:

    * for datasets: `torpor volume create data --size 2g`
    """
    from torpor.cli.link import connection  # noqa: PLC0415

    with connection() as client:
        made = client.volumes.create(name, _megabytes(size))
    if json:
        output.show_json(output.facts(made))
        return
    output.say(made.name)
    output.note(f"{wording.size(made.size_mb * _MIB)}, empty. Next: torpor create --volume {made.name}:/data")


@app.command("list")
def list_all(json: Json = False) -> None:
    """List the volumes, by name.

    Examples:

    * all there are: `torpor volume list`
    """
    from torpor.cli.link import connection  # noqa: PLC0415

    with connection() as client:
        found = client.volumes.list()
    if json:
        output.show_json([output.facts(each) for each in found])
        return
    output.table(
        _COLUMNS,
        [_row(each) for each in found],
        empty="There are no volumes. `torpor volume create NAME` makes one.",
    )


@app.command()
def show(name: VolumeName, json: Json = False) -> None:
    """Show one volume, and which sandboxes have it.

    Examples:

    * who has it: `torpor volume show data`
    """
    from torpor.cli.link import connection  # noqa: PLC0415

    with connection() as client:
        volume = client.volumes.get(name)
    if json:
        output.show_json(output.facts(volume))
        return
    told = dict(zip(_COLUMNS, _row(volume), strict=True))
    output.fields({"id": volume.id} | told | {"problem": volume.problem or ""})


@app.command()
def rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of volumes.", show_default=False)],
    json: Json = False,
) -> int:
    """Delete volumes with all that is in them; refused while a sandbox has one, also one that sleeps.

    Examples:

    * for good: `torpor volume rm data`
    """
    from torpor.cli.link import connection  # noqa: PLC0415

    codes: list[int] = []
    with connection() as client:
        for name in names:
            with output.failing(codes):
                client.volumes.delete(name)
                output.show_json({"deleted": name}) if json else output.say(f"{name} is deleted")
    return max(codes, default=0)


def volumes_of(given: Sequence[str] | None) -> list[dict[str, Any]] | None:
    """Return what --volume says, as `Sandbox.create` takes it. Raises InvalidRequest."""
    return [_wish(text) for text in given] if given else None


def _wish(text: str) -> dict[str, Any]:
    name, *more = text.split(":")
    wish: dict[str, Any] = {"name": name}
    if more and more[-1] in ("ro", "rw"):
        wish["read_only"] = more.pop() == "ro"
    if more:
        wish["path"] = more.pop(0)
    if not name or more:
        raise InvalidRequest(f"--volume takes NAME, NAME:PATH, NAME:ro or NAME:PATH:ro, and {text!r} is not that")
    return wish


def _megabytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,9})([mgt]?)", text.lower())
    if not match:
        raise InvalidRequest(f"--size takes a size such as 500m or 10g, and {text!r} is not that")
    return int(match[1]) * _UNITS[match[2]]


def _row(volume: Volume) -> tuple[str, ...]:
    holders = ", ".join(f"{each.sandbox_id}{' (ro)' if each.read_only else ''}" for each in volume.attached_to)
    taken = "missing" if volume.problem else wording.size(volume.disk_bytes)
    return volume.name, wording.size(volume.size_mb * _MIB), taken, wording.ago(volume.created_at), holders
