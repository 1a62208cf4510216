"""Snapshots: take, list, show, verify, rm, and the way back to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from torpor.cli import output, wording
from torpor.cli.options import Json, Limit, SandboxName, SnapshotName, SnapshotNames, complete_id
from torpor.cli.sandbox import called
from torpor.errors import NotFound

if TYPE_CHECKING:
    from typer._click.core import Context
    from typer._click.shell_completion import CompletionItem

    from torpor.sdk import Snapshot
    from torpor.sdk.descent import Branch

TAKE = "take"
_NONE = "There are no snapshots. `torpor snapshot ID` takes one."


class SnapshotGroup(TyperGroup):
    """`snapshot`: what is no command of it is the sandbox to take a snapshot of."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse the words after `snapshot`."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [TAKE, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """Return its commands and the sandboxes a snapshot can be taken of."""
        from typer._click.shell_completion import CompletionItem  # noqa: PLC0415

        boxes = [] if incomplete.startswith("-") else complete_id(incomplete)
        return [*super().shell_complete(ctx, incomplete), *(CompletionItem(id, help=says) for id, says in boxes)]


app = typer.Typer(
    cls=SnapshotGroup,
    help="Take a snapshot of a sandbox (`torpor snapshot ID`), or look after those there are.\n\n"
    "A snapshot holds memory and disk of one instant, and is kept until it is removed: `torpor snapshots` lists them, "
    "`torpor rollback` goes back to one, `torpor restore` makes a new sandbox of one.",
    subcommand_metavar="ID | COMMAND [ARGS]...",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command(TAKE)
def take(
    sandbox: SandboxName,
    name: Annotated[str | None, typer.Option(help="A name for people, such as `before-migration`.")] = None,
    json: Json = False,
) -> None:
    """Take a snapshot of a sandbox and print its id; the word `take` can be left out.

    Examples:

    * before what might go wrong: `torpor snapshot demo --name deps-installed`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    with connection() as client, output.busy("taking a snapshot ..."):
        box = find(client, sandbox)
        taken = box.snapshot(name)
    if json:
        output.show_json(output.facts(taken))
        return
    output.say(taken.id)
    output.note(
        f"{wording.size(taken.size_bytes)}, durable in {wording.taken(taken.took_ms / 1000)}; "
        f"the sandbox stood still for {wording.taken(taken.pause_ms / 1000)} of it. "
        f"Back to it: torpor rollback {box.name or box.id} {taken.id}"
    )


@app.command()
def show(snapshot: SnapshotName, json: Json = False) -> None:
    """Show everything about one snapshot.

    Examples:

    * `torpor snapshot show ready`
    """
    from torpor.cli.link import connection, find_snapshot  # noqa: PLC0415

    with connection() as client:
        found = find_snapshot(client, snapshot)
    if json:
        output.show_json(output.facts(found))
        return
    output.fields(_described(found))


@app.command()
def verify(snapshots: SnapshotNames, json: Json = False) -> int:
    """Read snapshots whole and compare every byte with what was written. Exits with 1 if one is damaged.

    Examples:

    * is it whole: `torpor snapshot verify ready`
    """
    from torpor.cli.link import connection, find_snapshot  # noqa: PLC0415

    verified = []
    codes: list[int] = []
    with connection() as client:
        for text in snapshots:
            with output.failing(codes):
                with output.busy(f"reading {text} ..."):
                    told = find_snapshot(client, text).verify()
                verified.append(told.model_dump())
                if not json:
                    size, took = wording.size(told.checked_bytes), wording.taken(told.took_ms / 1000)
                    output.say(f"{told.id}  ok  {size} read in {took}")
    if json:
        output.show_json(verified)
    return max(codes, default=0)


@app.command()
def rm(
    snapshots: SnapshotNames,
    force: Annotated[bool, typer.Option("--force", "-f", help="Do not mind one that is not there.")] = False,
    json: Json = False,
) -> int:
    """Remove snapshots and give their space back. Sandboxes made from them live on.

    Examples:

    * `torpor snapshot rm ready`
    """
    from torpor.cli.link import connection, find_snapshot  # noqa: PLC0415

    deleted: list[str] = []
    code = 0
    with connection() as client:
        for text in snapshots:
            try:
                snapshot = find_snapshot(client, text)
                snapshot.delete()
            except NotFound as error:
                code = code if force else output.fail(error)
                continue
            deleted.append(snapshot.id)
            output.note(f"removed {snapshot}{f' ({snapshot.name})' if snapshot.name else ''}")
    if json:
        output.show_json({"deleted": deleted})
    return code


def list_all(
    sandbox: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="Only those of this sandbox: its id or name.", autocompletion=complete_id),
    ] = None,
    limit: Limit = None,
    as_tree: Annotated[bool, typer.Option("--tree", help="Draw which was taken after which.")] = False,
    json: Json = False,
) -> None:
    """List the snapshots, newest first.

    SIZE is what one takes up on disk beyond what it shares with its PARENT. With --tree they are drawn by descent.

    Examples:

    * those of one sandbox: `torpor snapshots demo`
    * which came after which: `torpor snapshots --tree`
    """
    from itertools import islice  # noqa: PLC0415

    from torpor.cli.link import connection, find  # noqa: PLC0415
    from torpor.sdk import Snapshot, Snapshots  # noqa: PLC0415

    with connection() as client:
        owner = None if sandbox is None else find(client, sandbox)
        found = list(islice(Snapshot.iterate(owner, client=client), limit))
    if json:
        output.show_json([output.facts(snapshot) for snapshot in found])
        return
    if as_tree:
        output.tree([_limb(branch) for branch in Snapshots(found).tree()], empty=_NONE)
        return
    output.table(
        ("id", "sandbox", "kind", "name", "size", "age", "parent"),
        [_row(snapshot) for snapshot in found],
        empty=_NONE,
        cut={"sandbox", "parent"},
    )


def rollback(sandbox: SandboxName, snapshot: SnapshotName, json: Json = False) -> None:
    """Make a sandbox again what it was in a snapshot. What happened in it since then is lost.

    It keeps its id, its name and the end of its life. `torpor restore` makes a new sandbox instead.

    Examples:

    * after an experiment: `torpor rollback demo ready`
    """
    from torpor.cli.link import connection, find, find_snapshot  # noqa: PLC0415

    with connection() as client, output.busy("rolling back ..."):
        box = find(client, sandbox)
        target = find_snapshot(client, snapshot, box)
        info = box.rollback(target)
    if json:
        output.show_json(output.facts(info))
        return
    output.note(f"{called(box)} is again what it was {wording.ago(target.created_at)} ago, in {target}")


def _row(snapshot: Snapshot) -> tuple[str, ...]:
    return (
        snapshot.id,
        snapshot.sandbox_id,
        snapshot.kind,
        snapshot.name or "",
        wording.size(snapshot.size_bytes),
        wording.ago(snapshot.created_at),
        snapshot.parent_id or "",
    )


def _limb(branch: Branch[Snapshot]) -> output.Branch:
    one = branch.snapshot
    said = [one.name or "", f"{one.kind}, {wording.size(one.size_bytes)}", f"{wording.ago(one.created_at)} ago"]
    return output.Branch(one.id, said, [_limb(below) for below in branch.branches])


def _described(snapshot: Snapshot) -> dict[str, str]:
    return {
        "id": snapshot.id,
        "name": snapshot.name or "",
        "kind": snapshot.kind,
        "of sandbox": snapshot.sandbox_id,
        "template": snapshot.template,
        "machine": f"{snapshot.cpu} cpu, {snapshot.memory_mb} MiB memory, {snapshot.disk_gb} GiB disk",
        "taken": f"{snapshot.created_at:%Y-%m-%d %H:%M:%S %Z} ({wording.ago(snapshot.created_at)} ago)",
        "size": f"{wording.size(snapshot.size_bytes)} beyond its parent",
        "parent": snapshot.parent_id or "",
        "memory": f"{wording.size(snapshot.dirty_bytes)} was written, {wording.size(snapshot.written_bytes)} of it new",
        "stood still for": wording.taken(snapshot.pause_ms / 1000),
        "durable in": wording.taken(snapshot.took_ms / 1000),
    }
