"""Builds of templates: build, builds, logs, cancel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torpor.cli import output, wording
from torpor.cli.options import Home, Json, home_folder, named_values, server_parts
from torpor.errors import HostUnreachable, InvalidRequest

if TYPE_CHECKING:
    from torpor.sdk import Client, Template, TemplateBuild
    from torpor.sdk.making import Making

_FROM = "What it is made from"
_SIZE = "The machine"

BuildId = Annotated[str, typer.Argument(metavar="BUILD", help="A build's id.", show_default=False)]


def build(  # noqa: PLR0913 - each is one thing to say about a template
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is to be called.", show_default=False)],
    *,
    image: Annotated[
        str | None, typer.Option(metavar="REF", help="An OCI image in a registry.", rich_help_panel=_FROM)
    ] = None,
    dockerfile: Annotated[
        Path | None, typer.Option("--dockerfile", "-f", metavar="FILE", help="A Dockerfile.", rich_help_panel=_FROM)
    ] = None,
    context: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="What the Dockerfile copies from; it may be in there.", rich_help_panel=_FROM),
    ] = None,
    rootfs: Annotated[
        Path | None, typer.Option(metavar="TAR", help="A root file system, as a tar.", rich_help_panel=_FROM)
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option(metavar="TAR", help="An image in a file: an OCI or Docker archive.", rich_help_panel=_FROM),
    ] = None,
    snapshot: Annotated[
        str | None, typer.Option(metavar="SNP", help="A snapshot's id or name.", rich_help_panel=_FROM)
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="NAME=VALUE", help="For an ARG of the Dockerfile; can be repeated."),
    ] = None,
    cpu: Annotated[int | None, typer.Option(help="Virtual processors.", rich_help_panel=_SIZE)] = None,
    memory: Annotated[int | None, typer.Option(metavar="MIB", help="Memory.", rich_help_panel=_SIZE)] = None,
    disk: Annotated[int | None, typer.Option(metavar="GIB", help="Disk, at least.", rich_help_panel=_SIZE)] = None,
    start: Annotated[
        str | None, typer.Option(metavar="CMD", help="What runs in every sandbox from its first moment.")
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Only order it, and print the build's id.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Use nothing again that was made before.")] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Build a template: of an image, a Dockerfile, a root file system, a snapshot, or (base, agent) of Torpor's own.

    The server builds it; its log is shown as it grows. Ctrl-C asks whether to cancel the build, which else goes on.
    One of Torpor's own is built right here where no server runs; that needs root.

    Examples:

    * one of Torpor's own: `sudo torpor template build base`
    * of an image: `torpor template build tools --image registry.example/tools:1 --memory 1024`
    * of a Dockerfile, and the folder it is in: `torpor template build app --context . --arg VERSION=3`
    * of a snapshot, to begin where that was taken: `torpor template build warm --snapshot ready`
    """
    making: Making = {
        "image": image,
        "dockerfile": dockerfile,
        "context": context,
        "rootfs": rootfs,
        "archive": archive,
        "cpu": cpu,
        "memory_mb": memory,
        "size_gb": disk,
        "start_command": start,
        "force": force,
        "args": named_values(arg, "--arg"),
    }
    is_own = snapshot is None and not any((image, dockerfile, context, rootfs, archive))
    if is_own and (_is_elsewhere(home) or not _is_served()):
        _build_here(name, making, home, json)
        return
    _build_there(name, making | ({"recipe": name} if is_own else {}), snapshot, no_wait, json)


def _is_elsewhere(home: Path | None) -> bool:
    """Tell whether a data directory is named that is not the one whose server would be asked."""
    return home is not None and home_folder(home) != home_folder(None)


def _is_served() -> bool:
    """Tell whether a server answers. Raises HostUnreachable where one is named that does not."""
    from torpor.cli.link import connection  # noqa: PLC0415
    from torpor.sdk.settings import is_server_named  # noqa: PLC0415

    try:
        with connection(request_timeout=5) as client:
            client.me()
    except HostUnreachable:
        if is_server_named():
            raise
        return False
    return True


def _build_here(name: str, making: Making, home: Path | None, json: bool) -> None:
    import asyncio  # noqa: PLC0415
    import logging  # noqa: PLC0415

    with server_parts():
        from torpor.cli.logs import log_to_stderr  # noqa: PLC0415
        from torpor.host.bake import build_template  # noqa: PLC0415

    if any(making[size] is not None for size in ("cpu", "memory_mb", "size_gb", "start_command")):
        raise InvalidRequest(
            "only a running server can give a template another size, or a start command", hint="torpor up"
        )
    log_to_stderr(logging.WARNING)
    with output.progress() as report:
        view = asyncio.run(build_template(home_folder(home), name, force=making["force"], report=report))
    _tell(view, json)


def _build_there(name: str, making: Making, snapshot: str | None, no_wait: bool, json: bool) -> None:
    from torpor.cli.link import connection, find_snapshot  # noqa: PLC0415

    with connection() as client:
        if snapshot is not None:
            making["snapshot"] = find_snapshot(client, snapshot).id
        with output.busy("sending ..."):
            ordered = client.templates.build(name, wait=False, **making)
        if no_wait:
            output.show_json(_record(ordered)) if json else output.say(ordered.id)
            return
        try:
            with output.busy(f"building {name} ({ordered.id}) ..."):
                view = client.templates.wait_for_build(ordered.id, on_log=_show)
        except KeyboardInterrupt:
            _interrupted(client, ordered)
            raise
    _tell(view, json)


def _show(line: str) -> None:
    """Show a line of a log: beside the result, which is the template."""
    output.note(line) if output.is_watched() else output.warn(line)


def _interrupted(client: Client, ordered: TemplateBuild) -> None:
    """Cancel the build, if nobody is there who could be asked, or says so."""
    if output.is_watched() and not typer.confirm(f"Cancel the build {ordered.id}?", default=True, err=True):
        output.note(f"it goes on; `torpor template logs -f {ordered.id}` follows it")
        return
    client.templates.cancel_build(ordered.id)
    output.warn(f"build {ordered.id} is cancelled")


def _tell(view: Template, json: bool) -> None:
    if json:
        output.show_json(view.model_dump(mode="json"))
        return
    booted = f"cold boot {view.cold_boot_ms / 1000:.1f} s under {view.accelerator}"
    output.say(f"template {view.name} is ready: {wording.size(view.size_bytes)}, {booted}")


def builds(json: Json = False) -> None:
    """List the builds of this key's workspace: those that wait or run, and the last hundred that ended.

    Examples:

    * what waits, and why the last one failed: `torpor template builds`
    """
    from torpor.cli.link import connection  # noqa: PLC0415

    with connection() as client:
        found = client.templates.builds()
    if json:
        output.show_json([_record(one) for one in found])
        return
    output.table(
        ("build", "template", "from", "status", "took", "age", "error"),
        [_row(one) for one in found],
        empty="There are no builds. `torpor template build` makes one.",
        cut=("from", "error"),
    )


def logs(
    build: BuildId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the build has ended.")] = False,
) -> None:
    """Show what a build has said.

    Examples:

    * to its end: `id=$(torpor template build warm --snapshot ready --no-wait); torpor template logs -f $id`
    """
    from torpor.cli.link import connection  # noqa: PLC0415

    with connection() as client:
        for line in client.templates.build_logs(build, follow=follow):
            output.say(line)


def cancel(
    builds: Annotated[list[str], typer.Argument(metavar="BUILD...", help="Ids of builds.", show_default=False)],
    json: Json = False,
) -> int:
    """Cancel builds that wait or run; fine if they have ended.

    Examples:

    * one that was begun by mistake: `torpor template cancel $(torpor template build base --force --no-wait)`
    """
    from torpor.cli.link import connection  # noqa: PLC0415

    codes: list[int] = []
    with connection() as client:
        for build in builds:
            with output.failing(codes):
                client.templates.cancel_build(build)
                ended = client.templates.get_build(build)
                output.show_json(_record(ended)) if json else output.note(f"{build}: {_ending(ended)}")
    return max(codes, default=0)


def _record(build: TemplateBuild) -> dict[str, Any]:
    return build.model_dump(mode="json")


def _row(build: TemplateBuild) -> tuple[str, ...]:
    status = f"{build.status}, {build.position}." if build.position is not None else _ending(build)
    took = ""
    if build.started_at is not None and build.ended_at is not None:
        took = wording.taken((build.ended_at - build.started_at).total_seconds())
    source = build.image_ref or build.kind
    error = "" if build.cancelled else wording.plain(build.error or "")
    return (build.id, build.name, wording.plain(source), status, took, wording.ago(build.created_at), error)


def _ending(build: TemplateBuild) -> str:
    return "cancelled" if build.cancelled else build.status
