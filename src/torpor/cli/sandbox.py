"""Sandboxes: create, list, show, rm."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torpor.cli import output
from torpor.cli.options import EnvVars, Json, Labels, SandboxName, TemplateName, named_values, seconds
from torpor.errors import NotFound

if TYPE_CHECKING:
    from torpor.sdk import Sandbox, SandboxInfo


def create(  # noqa: PLR0913 - each is one thing to say about a sandbox
    template: TemplateName = "base",
    *,
    name: Annotated[str | None, typer.Option(help="A unique name, which can be used in place of the id.")] = None,
    ttl: Annotated[
        str | None, typer.Option(metavar="TIME", help="The end of its life: 90, 15m, 2h, 1d from now.  [default: 1h]")
    ] = None,
    persistent: Annotated[bool, typer.Option("--persistent", help="Let it live until it is deleted.")] = False,
    metadata: Labels = None,
    env: EnvVars = None,
    cpu: Annotated[int | None, typer.Option(help="Virtual processors.  [default: the template's]")] = None,
    memory: Annotated[int | None, typer.Option(metavar="MIB", help="Memory.  [default: the template's]")] = None,
    disk: Annotated[int | None, typer.Option(metavar="GIB", help="Disk.  [default: the template's]")] = None,
    json: Json = False,
) -> None:
    """Make a sandbox and print its id.

    Example: `torpor create agent --ttl 2h -m run=42`
    """
    from torpor.cli.link import connection  # noqa: PLC0415
    from torpor.sdk import Sandbox  # noqa: PLC0415
    from torpor.wire.public import DEFAULT_TTL_SECONDS  # noqa: PLC0415

    with connection() as client, output.busy("restoring ..."):
        sandbox = Sandbox.create(
            template,
            ttl_seconds=DEFAULT_TTL_SECONDS if ttl is None else seconds(ttl, "--ttl"),
            persistent=persistent,
            name=name,
            metadata=named_values(metadata, "--metadata"),
            env=named_values(env, "--env"),
            cpu=cpu,
            memory_mb=memory,
            disk_gb=disk,
            client=client,
        )
    if json:
        output.show_json(_record(sandbox.info))
        return
    output.say(sandbox.id)
    output.note(_created(sandbox.info))


def list_all(
    metadata: Labels = None,
    state: Annotated[str | None, typer.Option(help="Only those in this state, such as running.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many, the newest.")] = None,
    json: Json = False,
) -> None:
    """List the sandboxes, newest first.

    Example: `torpor list -m run=42`
    """
    from itertools import islice  # noqa: PLC0415

    from torpor.cli.link import connection  # noqa: PLC0415
    from torpor.sdk import Sandbox  # noqa: PLC0415

    with connection() as client:
        every = Sandbox.iterate(named_values(metadata, "--metadata"), state, client=client)
        infos = [sandbox.info for sandbox in islice(every, limit)]
    if json:
        output.show_json([_record(info) for info in infos])
        return
    output.table(
        ("id", "name", "template", "state", "age", "ends in", "metadata"),
        [_row(info) for info in infos],
        empty="There are no sandboxes. `torpor create` makes one.",
    )


def show(sandbox: SandboxName, json: Json = False) -> None:
    """Show everything about one sandbox.

    Example: `torpor show sbx-4kd9m2x7p0c5w8zt`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    with connection() as client:
        info = find(client, sandbox).info
    if json:
        output.show_json(_record(info))
        return
    output.fields(_described(info))


def rm(
    sandboxes: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Ids or names of sandboxes.", show_default=False)
    ],
    force: Annotated[bool, typer.Option("--force", "-f", help="Do not mind one that is not there.")] = False,
    json: Json = False,
) -> int:
    """Delete sandboxes and all that is in them.

    Example: `torpor rm sbx-4kd9m2x7p0c5w8zt`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    deleted: list[str] = []
    code = 0
    with connection() as client:
        for text in sandboxes:
            try:
                sandbox = find(client, text)
                sandbox.delete()
            except NotFound as error:
                code = code if force else output.fail(error)
                continue
            deleted.append(sandbox.id)
            output.note(f"deleted {_called(sandbox)}")
    if json:
        output.show_json({"deleted": deleted})
    return code


def _record(info: SandboxInfo) -> dict[str, Any]:
    return {field.name: getattr(info, field.name) for field in dataclasses.fields(info)}


def _called(sandbox: Sandbox) -> str:
    return f"{sandbox.name} ({sandbox.id})" if sandbox.name else sandbox.id


def _row(info: SandboxInfo) -> tuple[str, ...]:
    ends = output.ago(info.expires_at) if info.expires_at else "never"
    return (
        info.id,
        info.name or "",
        info.template,
        info.state,
        output.ago(info.created_at),
        ends,
        output.pairs(info.metadata),
    )


def _created(info: SandboxInfo) -> str:
    took = f" in {info.boot_ms} ms" if info.boot_ms is not None else ""
    end = f"ends in {output.ago(info.expires_at)}" if info.expires_at else "lives until it is deleted"
    return f"{info.template}, {info.state}{took}, {end}. Next: torpor exec {info.name or info.id} 'uname -a'"


def _described(info: SandboxInfo) -> dict[str, str]:
    return {
        "id": info.id,
        "name": info.name or "",
        "template": info.template,
        "state": info.state,
        "reason": info.reason or "",
        "size": f"{info.cpu} cpu, {info.memory_mb} MiB memory, {info.disk_gb} GiB disk",
        "network": info.network,
        "address": info.guest_ip or "",
        "created": f"{info.created_at:%Y-%m-%d %H:%M:%S %Z} ({output.ago(info.created_at)} ago)",
        "ends": f"{info.expires_at:%Y-%m-%d %H:%M:%S %Z} (in {output.ago(info.expires_at)})"
        if info.expires_at
        else "never",
        "metadata": output.pairs(info.metadata),
        "restored in": f"{info.boot_ms} ms" if info.boot_ms is not None else "",
        "last snapshot": info.last_snapshot_id or "",
    }
