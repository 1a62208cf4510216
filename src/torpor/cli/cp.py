"""Copy files and folders into and out of a sandbox."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from torpor.cli import output, wording
from torpor.cli.options import Json
from torpor.errors import InvalidRequest, NotFound
from torpor.wire.names import local_name, wire_name

if TYPE_CHECKING:
    from torpor.sdk import Sandbox, Transferred

STREAM = "-"


class _Place(NamedTuple):
    """One side of a copy: a path here, or with `sandbox` in a guest."""

    path: str
    sandbox: str | None = None


def cp(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="PATH, ID:/PATH, or - for stdin.", show_default=False)
    ],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="PATH, ID:/PATH, or - for stdout.", show_default=False)
    ],
    json: Json = False,
) -> None:
    """Copy a file or a folder into a sandbox or out of it.

    A copy to a folder that is there goes into it, as with cp.

    Examples: `torpor cp ./service ID:/work`, `torpor cp ID:/work/report.md .`, `torpor cp ID:/work/log - | tail`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    here, there, is_upload = _sides(source, target)
    begin = time.monotonic()
    with connection() as client:
        sandbox = find(client, str(there.sandbox))
        with output.busy(f"copying {source} ...") if STREAM not in (source, target) else nullcontext():
            moved = _upload(sandbox, here, there) if is_upload else _download(sandbox, there, here)
    for name in moved.skipped:
        output.warn(f"left out {name}: a link to a folder or to nothing")
    if json:
        output.show_json({"files": moved.files, "bytes": moved.bytes, "skipped": moved.skipped})
    elif STREAM not in (source, target):
        files = "1 file" if moved.files == 1 else f"{moved.files} files"
        output.note(f"copied {files}, {wording.size(moved.bytes)}, in {time.monotonic() - begin:.1f} s")


def _sides(source: str, target: str) -> tuple[_Place, _Place, bool]:
    left, right = _place(source), _place(target)
    if (left.sandbox is None) == (right.sandbox is None):
        raise InvalidRequest(
            "one side of a copy has to be in a sandbox, and the other here",
            hint="write ID:/path for the sandbox's side",
        )
    return (left, right, True) if right.sandbox else (right, left, False)


def _place(text: str) -> _Place:
    if not text:
        raise InvalidRequest("one side of a copy is empty", hint="`.` is the folder you are in")
    sandbox, colon, path = text.partition(":")
    if colon and sandbox and "/" not in sandbox:
        if not path.startswith("/"):
            raise InvalidRequest(f"{text!r} has to name an absolute path", hint=f"write {sandbox}:/{path}")
        return _Place(wire_name(path), sandbox)
    return _Place(text)


def _upload(sandbox: Sandbox, here: _Place, there: _Place) -> Transferred:
    files = sandbox.filesystem
    if here.path == STREAM:
        return files.upload(sys.stdin.buffer, there.path)
    local = Path(here.path)
    if not local.exists():
        raise InvalidRequest(f"there is no {here.path} here")
    return files.upload(local, _inside(sandbox, there.path, wire_name(local.absolute().name)))


def _download(sandbox: Sandbox, there: _Place, here: _Place) -> Transferred:
    files = sandbox.filesystem
    if here.path == STREAM:
        return files.download(there.path, sys.stdout.buffer)
    local = Path(here.path)
    name = local_name(Path(there.path).name)
    if (local.is_dir() or here.path.endswith("/")) and name:
        local /= name
        local.parent.mkdir(parents=True, exist_ok=True)
    return files.download(there.path, local)


def _inside(sandbox: Sandbox, path: str, name: str) -> str:
    """Return where a copy to `path` ends: in it, if it is a folder or written as one."""
    inside = f"{path.rstrip('/')}/{name}"
    if path.endswith("/"):
        return inside
    try:
        return inside if sandbox.filesystem.stat(path).is_dir else path
    except NotFound:
        return path
