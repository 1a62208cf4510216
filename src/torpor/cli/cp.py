"""Copy files and folders into and out of a sandbox."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
# So much of a name is shown beside how far it has come.
_NAME_WIDTH = 24


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

    A copy to a folder that is there goes into it, as with cp. Folders are copied with all that is in them, empty ones
    too, and permission bits are kept. A link to a file arrives as that file; links to folders and to nothing are left
    out, and named. A file that is there is replaced when the new one is whole: Ctrl-C leaves no half of one. From one
    sandbox to another a file goes by a pipe.

    Examples:

    * arrives as /work/service: `mkdir -p service; torpor cp ./service demo:/work`
    * into the folder you are in: `torpor cp demo:/etc/hosts .`
    * to stdout, for a pipe: `torpor cp demo:/etc/hosts -`
    * from a pipe: `echo hello | torpor cp - demo:/work/hello.txt`
    * to another sandbox: `torpor cp demo:/etc/hosts - | torpor cp - other:/work/hosts`
    """
    from torpor.cli.link import connection, find  # noqa: PLC0415

    here, there, is_upload = _sides(source, target)
    begin = time.monotonic()
    with connection() as client:
        sandbox = find(client, str(there.sandbox))
        try:
            moved = _upload(sandbox, here, there) if is_upload else _download(sandbox, there, here)
        except KeyboardInterrupt:
            output.note("broken off: what was copied is whole, and what was under way is not there")
            raise
    for name in moved.skipped:
        output.warn(f"left out {wording.plain(name)}: a link to a folder or to nothing")
    if json:
        output.show_json({"files": moved.files, "bytes": moved.bytes, "skipped": moved.skipped})
    elif STREAM not in (source, target):
        files = "1 file" if moved.files == 1 else f"{moved.files} files"
        took_s = max(time.monotonic() - begin, 0.001)
        rate = f"{wording.size(moved.bytes / took_s)}/s"
        output.note(f"copied {files}, {wording.size(moved.bytes)}, in {wording.taken(took_s)}: {rate}")


def _sides(source: str, target: str) -> tuple[_Place, _Place, bool]:
    left, right = _place(source), _place(target)
    if left.sandbox and right.sandbox:
        raise InvalidRequest(
            "both sides of the copy are in sandboxes",
            hint=f"`torpor cp {source} - | torpor cp - {target}` copies a file; a folder goes by way of a folder here",
        )
    if left.sandbox is None and right.sandbox is None:
        raise InvalidRequest("neither side of the copy is in a sandbox", hint="write ID:/path for the sandbox's side")
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
        with _shown("stdin", None, None) as show:
            return files.upload(sys.stdin.buffer, there.path, on_progress=show)
    local = Path(here.path)
    if not local.exists():
        raise InvalidRequest(f"there is no {here.path} here")
    name = wire_name(local.absolute().name)
    with _shown(name, *_size_here(local)) as show:
        return files.upload(local, _inside(sandbox, there.path, name), on_progress=show)


def _download(sandbox: Sandbox, there: _Place, here: _Place) -> Transferred:
    files = sandbox.filesystem
    if here.path == STREAM:
        return files.download(there.path, sys.stdout.buffer)
    local = Path(here.path)
    name = local_name(Path(there.path).name)
    if (local.is_dir() or here.path.endswith("/")) and name:
        local /= name
        local.parent.mkdir(parents=True, exist_ok=True)
    with _shown(name, *_size_there(sandbox, there.path)) as show:
        return files.download(there.path, local, on_progress=show)


@contextmanager
def _shown(name: str, total: int | None, count: int | None) -> Iterator[Callable[[Transferred], None]]:
    """Show a person how far the copy of `name` has come: of so many bytes, in so many files."""
    with output.moving(wording.cut(wording.plain(name), _NAME_WIDTH), total, count) as show:
        yield lambda moved: show(moved.bytes, moved.files)


def _size_here(local: Path) -> tuple[int | None, int | None]:
    """Return how many bytes are to be sent, in how many files; None where nobody looks."""
    if not output.is_watched():
        return None, None
    if not local.is_dir():
        return local.stat().st_size, 1
    from torpor.sdk.local import folder_items  # noqa: PLC0415

    sizes = [item.path.stat().st_size for item in folder_items(local) if not item.is_dir and not item.is_skipped]
    return sum(sizes), len(sizes)


def _size_there(sandbox: Sandbox, path: str) -> tuple[int | None, int | None]:
    """Return the same of what is to be fetched. Where there are links to files, more comes than they say."""
    if not output.is_watched():
        return None, None
    entry = sandbox.filesystem.stat(path)
    if not entry.is_dir:
        return None if entry.is_symlink else entry.size, 1
    sizes = [one.size for one in sandbox.filesystem.walk(path) if not one.is_dir and not one.is_symlink]
    return sum(sizes), len(sizes)


def _inside(sandbox: Sandbox, path: str, name: str) -> str:
    """Return where a copy to `path` ends: in it, if it is a folder or written as one."""
    inside = f"{path.rstrip('/')}/{name}"
    if path.endswith("/"):
        return inside
    try:
        return inside if sandbox.filesystem.stat(path).is_dir else path
    except NotFound:
        return path
