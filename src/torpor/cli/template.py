"""Templates: build, list, show, rm, and their builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from torpor.cli import output, template_build, wording
from torpor.cli.options import Json, TemplateName

if TYPE_CHECKING:
    from torpor.wire.public import TemplateView

app = typer.Typer(
    help="Templates: the prepared machines that sandboxes start from.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.command()(template_build.build)


@app.command("list")
def list_all(json: Json = False) -> None:
    """List the templates that can be used: the workspace's own, and everybody's.

    Examples:

    * what there is to start from: `torpor template list`
    """
    from torpor.cli.link import connection  # noqa: PLC0415

    with connection() as client:
        views = client.templates.list()
    if json:
        output.show_json([_record(view) for view in views])
        return
    output.table(
        ("name", "of", "cpu", "memory", "disk", "size", "cold boot", "accelerator", "age"),
        [_row(view) for view in views],
        empty="There are no templates. `sudo torpor template build base` makes one.",
    )


@app.command()
def show(name: TemplateName, json: Json = False) -> None:
    """Show one template.

    Examples:

    * `torpor template show base`
    """
    from torpor.cli.link import connection  # noqa: PLC0415

    with connection() as client:
        view = client.templates.get(name)
    if json:
        output.show_json(_record(view))
        return
    output.fields(
        {
            "name": view.name,
            "of": view.workspace or "everybody",
            "made": f"{wording.instant(view.created_at)}, {wording.ago(view.created_at)} ago",
            "from": wording.plain(view.description or ""),
            "processors": str(view.cpu),
            "memory": f"{view.memory_mb} MiB",
            "disk": f"{view.disk_gb} GiB",
            "size": wording.size(view.size_bytes),
            "cold boot": f"{view.cold_boot_ms / 1000:.1f} s under {view.accelerator}",
            "fingerprint": view.fingerprint,
        }
    )


@app.command()
def rm(
    name: TemplateName,
    json: Json = False,
) -> None:
    """Remove a template. Sandboxes made from it live on. For one that is everybody's it takes an admin's key.

    Examples:

    * `torpor template rm warm`
    """
    from torpor.cli.link import connection  # noqa: PLC0415

    with connection() as client:
        client.templates.delete(name)
    if json:
        output.show_json({"deleted": [name]})
    output.note(f"removed {name}")


app.command()(template_build.builds)
app.command()(template_build.logs)
app.command()(template_build.cancel)


def _record(view: TemplateView) -> dict[str, Any]:
    return view.model_dump(mode="json")


def _row(view: TemplateView) -> tuple[str, ...]:
    return (
        view.name,
        view.workspace or "everybody",
        str(view.cpu),
        f"{view.memory_mb} MiB",
        f"{view.disk_gb} GiB",
        wording.size(view.size_bytes),
        f"{view.cold_boot_ms / 1000:.1f} s",
        view.accelerator,
        wording.ago(view.created_at),
    )
