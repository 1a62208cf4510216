"""Sandboxes at rest: hibernate, wake, pause, resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import output, wording
from torpor.cli.options import Json, SandboxNames, seconds
from torpor.cli.sandbox import called

if TYPE_CHECKING:
    from torpor.sdk import Sandbox


def hibernate(sandboxes: SandboxNames, json: Json = False) -> int:
    """Freeze sandboxes to disk, so that they use no processor and no memory.

    `torpor wake`, or any command or copy, brings one back in mid-instruction, exactly where it left off.

    Examples:

    * for a night, or while a model thinks: `torpor hibernate demo`
    """
    return _each(sandboxes, "hibernating", lambda sandbox: sandbox.hibernate(), json=json)


def wake(
    sandboxes: SandboxNames,
    ttl: Annotated[
        str | None, typer.Option(metavar="TIME", help="A new end of its life: 90, 15m, 2h, 1d from now.")
    ] = None,
    json: Json = False,
) -> int:
    """Bring sandboxes back from hibernation.

    Examples:

    * with two more hours to live: `torpor wake demo --ttl 2h`
    """
    life = None if ttl is None else seconds(ttl, "--ttl")
    return _each(sandboxes, "waking", lambda sandbox: sandbox.wake(life), json=json)


def pause(sandboxes: SandboxNames, json: Json = False) -> int:
    """Let the processors of sandboxes stand still.

    Their memory stays in use; `torpor hibernate` frees that too.

    Examples:

    * for a moment: `torpor pause demo`
    """
    return _each(sandboxes, "pausing", lambda sandbox: sandbox.pause(), json=json)


def resume(sandboxes: SandboxNames, json: Json = False) -> int:
    """Let paused sandboxes go on.

    Examples:

    * `torpor resume demo`
    """
    return _each(sandboxes, "resuming", lambda sandbox: sandbox.resume(), json=json)


def _each(names: Sequence[str], doing: str, act: Callable[[Sandbox], object], *, json: bool) -> int:
    """Do something to one after the other; one that cannot be done is told and does not keep the next from it."""
    from torpor.cli.link import connection, find  # noqa: PLC0415

    done: list[Sandbox] = []
    codes: list[int] = []
    with connection() as client:
        for name in names:
            with output.failing(codes):
                with output.busy(f"{doing} {name} ..."):
                    sandbox = find(client, name)
                    begin = time.monotonic()
                    act(sandbox)
                done.append(sandbox)
                output.note(f"{called(sandbox)}: {sandbox.state} after {wording.taken(time.monotonic() - begin)}")
    if json:
        output.show_json([output.facts(sandbox.info) for sandbox in done])
    return max(codes, default=0)
