"""Sandboxes: create, restore, fork, list, show, rm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import output, wording
from torpor.cli.network import Allowed, Network, reach_of, reach_told
from torpor.cli.options import (
    CheckpointEvery,
    CheckpointExecs,
    CheckpointKeep,
    Cpu,
    Disk,
    EnvVars,
    Idle,
    Json,
    Labels,
    Limit,
    Memory,
    Name,
    OnCrash,
    OnIdle,
    Persistent,
    SandboxName,
    SandboxNames,
    SnapshotName,
    TemplateName,
    Ttl,
    care,
    named_values,
    seconds,
)
from torpor.cli.secrets import NoSecrets, SecretFile, Secrets, secrets_of
from torpor.cli.volume import Attached, volumes_of
from torpor.errors import NotFound

if TYPE_CHECKING:
    from torpor.sdk import Sandbox, SandboxInfo


def create(  # noqa: PLR0913 - each is one thing to say about a sandbox
    template: TemplateName = "base",
    *,
    name: Name = None,
    ttl: Ttl = None,
    persistent: Persistent = False,
    metadata: Labels = None,
    env: EnvVars = None,
    secret: Secrets = None,
    secret_file: SecretFile = None,
    network: Network = None,
    allow: Allowed = None,
    volume: Attached = None,
    cpu: Cpu = None,
    memory: Memory = None,
    disk: Disk = None,
    idle: Idle = None,
    on_idle: OnIdle = None,
    on_crash: OnCrash = None,
    checkpoint_every: CheckpointEvery = None,
    checkpoint_execs: CheckpointExecs = None,
    checkpoint_keep: CheckpointKeep = None,
    json: Json = False,
) -> None:
    """Make a sandbox and print its id.

    Examples:

    * for two hours, with a label to find it by: `torpor create base --ttl 2h -m run=42`
    * looks after itself: `torpor create --idle 15m --on-crash restore --checkpoint-every 5m`
    * cut off from everything: `torpor create --network none -e LANG=C`
    * with a disk that outlives it: `torpor volume create corpus && torpor create --volume corpus:/data`
    """
    from torpor.cli.link import connection  # noqa: PLC0415
    from torpor.sdk import Sandbox  # noqa: PLC0415

    with connection() as client, output.busy("restoring ..."):
        sandbox = Sandbox.create(
            template,
            ttl_seconds=_life(ttl),
            persistent=persistent,
            name=name,
            metadata=named_values(metadata, "--metadata"),
            env=named_values(env, "--env"),
            secrets=secrets_of(secret, secret_file),
            network=reach_of(network, allow),
            cpu=cpu,
            memory_mb=memory,
            disk_gb=disk,
            volumes=volumes_of(volume),
            client=client,
            **care(idle, on_idle, on_crash, checkpoint_every, checkpoint_execs, checkpoint_keep),
        )
    _tell_new(sandbox.info, json)


def restore(  # noqa: PLR0913 - each is one thing to say about a sandbox
    snapshot: SnapshotName,
    *,
    name: Name = None,
    ttl: Ttl = None,
    persistent: Persistent = False,
    metadata: Labels = None,
    env: EnvVars = None,
    secret: Secrets = None,
    secret_file: SecretFile = None,
    no_secrets: NoSecrets = False,
    network: Network = None,
    allow: Allowed = None,
    cpu: Cpu = None,
    memory: Memory = None,
    disk: Disk = None,
    idle: Idle = None,
    on_idle: OnIdle = None,
    on_crash: OnCrash = None,
    checkpoint_every: CheckpointEvery = None,
    checkpoint_execs: CheckpointExecs = None,
    checkpoint_keep: CheckpointKeep = None,
    json: Json = False,
) -> None:
    """Make a sandbox from a snapshot and print its id. It runs on from where the snapshot was taken.

    Examples:

    * one more that begins there: `torpor restore ready --ttl 2h`
    """
    from torpor.cli.link import connection, find_snapshot  # noqa: PLC0415
    from torpor.sdk import Sandbox  # noqa: PLC0415

    with connection() as client, output.busy("restoring ..."):
        sandbox = Sandbox.restore(
            find_snapshot(client, snapshot),
            ttl_seconds=_life(ttl),
            persistent=persistent,
            name=name,
            metadata=named_values(metadata, "--metadata"),
            env=named_values(env, "--env"),
            secrets=secrets_of(secret, secret_file, none=no_secrets),
            network=reach_of(network, allow),
            cpu=cpu,
            memory_mb=memory,
            disk_gb=disk,
            client=client,
            **care(idle, on_idle, on_crash, checkpoint_every, checkpoint_execs, checkpoint_keep),
        )
    _tell_new(sandbox.info, json)


def fork(  # noqa: PLR0913 - each is one thing to say about the copies
    sandbox: SandboxName,
    *,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many copies.")] = 1,
    ttl: Annotated[
        str | None, typer.Option(metavar="TIME", help="The end of their lives.  [default: the sandbox's ttl, from now]")
    ] = None,
    metadata: Labels = None,
    secret: Secrets = None,
    secret_file: SecretFile = None,
    no_secrets: NoSecrets = False,
    network: Network = None,
    allow: Allowed = None,
    json: Json = False,
) -> None:
    """Copy a sandbox as it is, running processes too, and print the copies' ids.

    The copies go their own ways from there. The sandbox may run, be paused or hibernate, and stays as it is.

    Examples:

    * two, with a label to find them by: `torpor fork demo -n 2 -m try=refactor`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    labels, life = named_values(metadata, "--metadata"), None if ttl is None else seconds(ttl, "--ttl")
    with connection() as client, output.busy("forking ..."):
        parent = find(client, sandbox)
        secrets = secrets_of(secret, secret_file, none=no_secrets)
        reach = reach_of(network, allow)
        children = parent.fork(count, metadata=labels, ttl_seconds=life, secrets=secrets, network=reach)
    if json:
        output.show_json([output.facts(child.info) for child in children])
        return
    for child in children:
        output.say(child.id)
    output.note(
        f"{len(children)} of {called(parent)}. `torpor tree {parent.name or parent.id}` shows who came from whom"
    )


def list_all(
    metadata: Labels = None,
    state: Annotated[str | None, typer.Option(help="Only those in this state, such as running.")] = None,
    limit: Limit = None,
    json: Json = False,
) -> None:
    """List the sandboxes, newest first.

    Examples:

    * all of your workspace: `torpor list`
    * those of one run that are awake: `torpor list -m run=42 --state running`
    """
    from itertools import islice  # noqa: PLC0415

    from torpor.cli.link import connection  # noqa: PLC0415
    from torpor.sdk import Sandbox  # noqa: PLC0415

    with connection() as client:
        every = Sandbox.iterate(named_values(metadata, "--metadata"), state, client=client)
        infos = [sandbox.info for sandbox in islice(every, limit)]
    if json:
        output.show_json([output.facts(info) for info in infos])
        return
    output.table(
        ("id", "name", "template", "state", "age", "ends in", "metadata"),
        [_row(info) for info in infos],
        empty="There are no sandboxes. `torpor create` makes one.",
    )


def show(sandbox: SandboxName, json: Json = False) -> None:
    """Show everything about one sandbox.

    Examples:

    * `torpor show demo`
    * for programs: `torpor show demo --json`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    with connection() as client:
        info = find(client, sandbox).info
    if json:
        output.show_json(output.facts(info))
        return
    output.fields(_described(info))


def rm(
    sandboxes: SandboxNames,
    force: Annotated[bool, typer.Option("--force", "-f", help="Do not mind one that is not there.")] = False,
    json: Json = False,
) -> int:
    """Delete sandboxes and all that is in them.

    Examples:

    * `torpor rm demo`
    * two, one of which may be gone already: `torpor rm -f demo other`
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
            output.note(f"deleted {called(sandbox)}")
    if json:
        output.show_json({"deleted": deleted})
    return code


def called(sandbox: Sandbox) -> str:
    """Return what a person calls a sandbox, and its id."""
    return f"{sandbox.name} ({sandbox.id})" if sandbox.name else sandbox.id


def when_idle(info: SandboxInfo) -> str:
    """Return what idleness does to a sandbox; "" if nothing."""
    if info.idle_timeout_seconds is None:
        return ""
    return f"{info.on_idle} after {wording.span(info.idle_timeout_seconds)}"


def _life(ttl: str | None) -> int:
    from torpor.wire.public import DEFAULT_TTL_SECONDS  # noqa: PLC0415

    return DEFAULT_TTL_SECONDS if ttl is None else seconds(ttl, "--ttl")


def _tell_new(info: SandboxInfo, json: bool) -> None:
    if json:
        output.show_json(output.facts(info))
        return
    output.say(info.id)
    output.note(_created(info))


def _row(info: SandboxInfo) -> tuple[str, ...]:
    ends = wording.ago(info.expires_at) if info.expires_at else "never"
    return (
        info.id,
        info.name or "",
        info.template,
        info.state,
        wording.ago(info.created_at),
        ends,
        wording.pairs(info.metadata),
    )


def _created(info: SandboxInfo) -> str:
    took = f" in {info.boot_ms} ms" if info.boot_ms is not None else ""
    end = f"ends in {wording.ago(info.expires_at)}" if info.expires_at else "lives until it is deleted"
    source = info.from_snapshot or info.template
    return f"{source}, {info.state}{took}, {end}. Next: torpor exec {info.name or info.id} 'uname -a'"


def _described(info: SandboxInfo) -> dict[str, str]:
    return {
        "id": info.id,
        "name": info.name or "",
        "template": info.template,
        "state": info.state,
        "reason": info.reason or "",
        "size": f"{info.cpu} cpu, {info.memory_mb} MiB memory, {info.disk_gb} GiB disk",
        "network": reach_told(info.network),
        "address": info.guest_ip or "",
        "secrets": ", ".join(info.secret_names),
        "volumes": ", ".join(wording.attached(each) for each in info.volumes),
        "created": f"{info.created_at:%Y-%m-%d %H:%M:%S %Z} ({wording.ago(info.created_at)} ago)",
        "ends": f"{info.expires_at:%Y-%m-%d %H:%M:%S %Z} (in {wording.ago(info.expires_at)})"
        if info.expires_at
        else "never",
        "when idle": when_idle(info),
        "after a crash": "restored from its last snapshot" if info.on_crash == "restore" else "",
        "checkpoints": _checkpoints(info),
        "metadata": wording.pairs(info.metadata),
        "restored in": f"{info.boot_ms} ms" if info.boot_ms is not None else "",
        "forked from": info.parent_id or "",
        "from snapshot": info.from_snapshot or "",
        "last snapshot": info.last_snapshot_id or "",
    }


def _checkpoints(info: SandboxInfo) -> str:
    every = []
    if info.checkpoint_every_seconds is not None:
        every.append(f"every {wording.span(info.checkpoint_every_seconds)}")
    if info.checkpoint_every_execs is not None:
        every.append(f"every {info.checkpoint_every_execs} commands")
    return f"{', '.join(every)}; the newest {info.checkpoint_keep} are kept" if every else ""
