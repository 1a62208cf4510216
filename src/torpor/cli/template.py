"""Templates: build, list, rm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from torpor.cli import output, wording
from torpor.cli.options import Home, Json, TemplateName, home_folder, server_parts

if TYPE_CHECKING:
    from torpor.wire.public import TemplateView

app = typer.Typer(
    help="Templates: the prepared machines that sandboxes start from.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command()
def build(
    name: Annotated[str, typer.Argument(metavar="NAME", help="base or agent.", show_default=False)],
    force: Annotated[bool, typer.Option("--force", help="Build it again although nothing has changed.")] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Build a template: make its disk, boot it once, freeze it. Takes a few minutes the first time; needs root.

    Example: `sudo torpor template build base`
    """
    import asyncio  # noqa: PLC0415
    import logging  # noqa: PLC0415

    with server_parts():
        from torpor.cli.logs import log_to_stderr  # noqa: PLC0415
        from torpor.host.bake import build_template  # noqa: PLC0415

    log_to_stderr(logging.WARNING)
    with output.progress() as report:
        view = asyncio.run(build_template(home_folder(home), name, force=force, report=report))
    if json:
        output.show_json(_record(view))
        return
    output.say(
        f"template {view.name} is ready: {wording.size(view.size_bytes)}, "
        f"cold boot {view.cold_boot_ms / 1000:.1f} s under {view.accelerator}"
    )


@app.command("list")
def list_all(json: Json = False) -> None:
    """List the templates of the running server.

    Example: `torpor template list`
    """
    from torpor.cli.link import connection  # noqa: PLC0415

    with connection() as client:
        views = client.templates.list()
    if json:
        output.show_json([_record(view) for view in views])
        return
    output.table(
        ("name", "cpu", "memory", "disk", "size", "cold boot", "accelerator", "age"),
        [_row(view) for view in views],
        empty="There are no templates. `sudo torpor template build base` makes one.",
    )


@app.command()
def rm(
    name: TemplateName,
    json: Json = False,
) -> None:
    """Remove a template. Sandboxes made from it live on.

    Example: `torpor template rm agent`
    """
    from torpor.cli.link import connection  # noqa: PLC0415

    with connection() as client:
        client.templates.delete(name)
    if json:
        output.show_json({"deleted": [name]})
    output.note(f"removed {name}")


def _record(view: TemplateView) -> dict[str, Any]:
    return view.model_dump(mode="json")


def _row(view: TemplateView) -> tuple[str, ...]:
    return (
        view.name,
        str(view.cpu),
        f"{view.memory_mb} MiB",
        f"{view.disk_gb} GiB",
        wording.size(view.size_bytes),
        f"{view.cold_boot_ms / 1000:.1f} s",
        view.accelerator,
        wording.ago(view.created_at),
    )
