"""Keys: create, list, revoke."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import output, wording
from torpor.cli.options import Json, seconds
from torpor.errors import InvalidRequest

if TYPE_CHECKING:
    from torpor.wire.access import TokenView

app = typer.Typer(
    help="Keys: who may use the server. Each belongs to a workspace, and sees nothing of any other.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

OfWorkspace = Annotated[
    str | None,
    typer.Option(
        "--workspace", metavar="NAME", help="Of another workspace than your own; for admins.", show_default=False
    ),
]
_DAY_S = 86_400
# So much of a key is listed.
_SHOWN = 12


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What people call it.", show_default=False)],
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME", help="Its end: 12h, 30d from now.  [default: none]")
    ] = None,
    workspace: OfWorkspace = None,
    admin: Annotated[bool, typer.Option("--admin", help="Let it make keys for every workspace; for admins.")] = False,
    json: Json = False,
) -> None:
    """Make a key and print it. It is shown this once, and kept nowhere.

    Examples:

    * for a program, for a month: `torpor token create ci --expires 30d`
    * the first key of another workspace: `torpor token create ops --workspace lab --admin`
    """
    from torpor.cli.link import connection  # noqa: PLC0415

    days = None if expires is None else seconds(expires, "--expires") / _DAY_S
    with connection() as client:
        made = client.tokens.create(
            name, expires_in_days=days, workspace=workspace, role="admin" if admin else "member"
        )
    if json:
        output.show_json(made.model_dump(mode="json"))
        return
    output.say(made.token)
    end = "has no end" if made.expires_at is None else f"ends {wording.instant(made.expires_at)}"
    output.note(f"It is for the workspace {made.workspace}, and {end}. It is shown only now.")


@app.command("list")
def list_all(workspace: OfWorkspace = None, json: Json = False) -> None:
    """List keys by their beginnings, also those that are over.

    Examples:

    * `torpor token list`
    """
    from torpor.cli.link import connection  # noqa: PLC0415

    with connection() as client:
        views = client.tokens.list(workspace)
    if json:
        output.show_json([view.model_dump(mode="json") for view in views])
        return
    output.table(
        ("key", "name", "workspace", "role", "state", "made", "by", "last used"),
        [_row(view) for view in views],
        empty="There are no keys but the server's own. `torpor token create NAME` makes one.",
    )


@app.command()
def revoke(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Beginnings of keys, as listed.")],
    workspace: OfWorkspace = None,
    json: Json = False,
) -> int:
    """Revoke keys: from then on they open nothing.

    Examples:

    * by its beginning, never whole: `key=$(torpor token create once); torpor token revoke ${key:0:12}`
    """
    from torpor.cli.link import connection  # noqa: PLC0415

    codes: list[int] = []
    with connection() as client:
        for key in keys:
            with output.failing(codes):
                if len(key) > _SHOWN:
                    raise InvalidRequest(
                        f"{key[:_SHOWN]}... is named by these {_SHOWN} characters", hint="never write a whole key"
                    )
                client.tokens.revoke(key, workspace)
                output.show_json({"revoked": key}) if json else output.say(f"{key} is revoked")
    return max(codes, default=0)


def _row(view: TokenView) -> tuple[str, ...]:
    if view.revoked_at is not None:
        state = f"revoked {wording.ago(view.revoked_at)} ago"
    elif view.expires_at is None:
        state = "no end"
    else:
        state = f"ends {wording.instant(view.expires_at)}"
    used = "never" if view.last_used_at is None else f"{wording.ago(view.last_used_at)} ago"
    made = f"{wording.ago(view.created_at)} ago"
    return (view.prefix, wording.plain(view.name), view.workspace, view.role, state, made, view.created_by, used)
