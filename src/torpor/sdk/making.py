"""What a template is to be made from, as the form that is sent: fields, and files that are read while they are sent."""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypedDict, cast

from torpor.errors import InvalidRequest
from torpor.model.patterns import Ignored
from torpor.sdk.body import PIECE_BYTES, Body
from torpor.sdk.foreign import checked
from torpor.sdk.http import Call
from torpor.sdk.orders import Identified, snapshot_id
from torpor.wire.builds import MAX_CONTEXT_BYTES, MAX_CONTEXT_FILES
from torpor.wire.templates import BuildTemplate

_IGNORE = ".dockerignore"
_DOCKERFILE = "Dockerfile"
_MIB_PER_GIB = 1024
# Taking in the last bytes of an archive, and recording it, takes the server longer than other calls.
_SILENCE_S = 300.0
_ESCAPES = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A"})

Local = str | os.PathLike[str]


class Making(TypedDict, total=False):
    """What a template is made from, and how; each is a keyword of `templates.build`.

    One of: `image`, an OCI image in a registry; `dockerfile`, the path of one, or its text; `rootfs`, the path of a tar
    of a root file system; `archive`, the path of an image in a file (an OCI layout, or what `docker save` writes);
    `snapshot`, a snapshot or its id; `recipe`, one of the server's own (with an admin's key).

    `context`: the folder that a Dockerfile copies from; without `dockerfile` the one in that folder is meant. What its
    .dockerignore leaves out is not sent, and a link is sent as the file or folder that it leads to, which has to be in
    the folder. `args`: values for the Dockerfile's ARGs. `size_gb`: at least so large a disk. `cpu`, `memory_mb`: the
    machine's size. `start_command`: what runs in every sandbox from its first moment. With `force` nothing that was
    made before is used again. `is_global`: whether it is for every workspace, which only an admin's can be, and is
    unless this says otherwise.
    """

    image: str | None
    dockerfile: Local | None
    rootfs: Local | None
    archive: Local | None
    snapshot: Identified | str | None
    recipe: str | None
    context: Local | None
    args: Mapping[str, str] | None
    size_gb: int | None
    cpu: int | None
    memory_mb: int | None
    start_command: str | None
    force: bool
    is_global: bool | None


def build_call(name: str, making: Making) -> Call:
    """Return the call that orders a template. It reads the Dockerfile, and finds the files of the context.

    Raises InvalidRequest, OSError for what cannot be read, and TypeError for a keyword that is none.
    """
    for keyword in making.keys() - Making.__annotations__.keys():
        raise TypeError(f"a template is not made with the keyword argument {keyword!r}")
    files = [*_archives(making), *_context_files(making)]
    fields = _fields(name, making)
    key = {"Idempotency-Key": secrets.token_hex(16)}
    path = "/templates/build"
    if not files:
        content = checked(BuildTemplate, **fields).model_dump_json(exclude_unset=True).encode()
        return Call("POST", path, content=content, headers=key, repeatable=True, silence_s=_SILENCE_S)
    checked(BuildTemplate, **fields)
    form = Form(_texts(fields), files)
    headers = key | {"Content-Type": form.media_type}
    return Call(
        "POST", path, body=Body(cast("IO[bytes]", form)), headers=headers, repeatable=True, silence_s=_SILENCE_S
    )


def _fields(name: str, making: Making) -> dict[str, Any]:
    snapshot, size_gb = making.get("snapshot"), making.get("size_gb")
    fields: dict[str, Any] = {
        "name": name,
        "image_ref": making.get("image"),
        "dockerfile": _dockerfile(making),
        "from_snapshot": None
        if snapshot is None
        else snapshot_id(snapshot if isinstance(snapshot, str) else snapshot.id),
        "recipe": making.get("recipe"),
        "size_mb": size_gb * _MIB_PER_GIB if isinstance(size_gb, int) else size_gb,
        "build_args": dict(making.get("args") or {}) or None,
        "force": making.get("force") or None,
    }
    fields |= {field: making.get(field) for field in ("cpu", "memory_mb", "start_command", "is_global")}
    return {field: value for field, value in fields.items() if value is not None}


def _texts(fields: Mapping[str, Any]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}


def _dockerfile(making: Making) -> str | None:
    given, context = making.get("dockerfile"), making.get("context")
    if given is None:
        if context is None:
            return None
        given = Path(context) / _DOCKERFILE
    if isinstance(given, str) and ("\n" in given or given.split(" ")[0].upper() in ("FROM", "ARG")):
        return given
    path = Path(given)
    if not path.is_file():
        raise InvalidRequest(f"there is no Dockerfile {path}", hint="give the path of one, or its text")
    return path.read_text()


@dataclass(frozen=True, slots=True)
class Sent:
    """A file that is sent: under which name, from which path, with which permission bits (None: no matter)."""

    name: str
    path: Path
    mode: int | None = None


def _archives(making: Making) -> Iterator[Sent]:
    for field, path in (("rootfs", making.get("rootfs")), ("image", making.get("archive"))):
        if path is not None:
            if not Path(path).is_file():
                raise InvalidRequest(f"there is no file {os.fspath(path)}")
            yield Sent(field, Path(path))


def _context_files(making: Making) -> Iterator[Sent]:
    context = making.get("context")
    if context is None:
        return
    root = Path(context)
    if not root.is_dir():
        raise InvalidRequest(f"the context {root} is no folder")
    ignore = root / _IGNORE
    try:
        ignored = Ignored(ignore.read_text() if ignore.is_file() else "")
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    count = size = 0
    for one in _below(root.resolve(), "", ignored, ()):
        count, size = count + 1, size + one.path.stat().st_size
        if count > MAX_CONTEXT_FILES or size > MAX_CONTEXT_BYTES:
            raise InvalidRequest(
                f"the context {root} has more than {MAX_CONTEXT_FILES} files, or {MAX_CONTEXT_BYTES // 2**20} MiB",
                hint=f"leave out by {_IGNORE} what is not copied",
            )
        yield one


def _below(root: Path, folder: str, ignored: Ignored, within: Sequence[Path]) -> Iterator[Sent]:
    """Yield the files below a folder of a context, in the order of their names. `within`: the folders it is in."""
    here = (root / folder).resolve()
    if here in within:
        raise InvalidRequest(f"in the context, {folder} is a link to a folder that it is in")
    for entry in sorted(os.listdir(here)):
        name = f"{folder}/{entry}" if folder else entry
        path = root / name
        is_left_out = ignored.ignores(name)
        if is_left_out and not (ignored.keeps_some and path.is_dir()):
            continue
        if not path.resolve().is_relative_to(root):
            raise InvalidRequest(f"in the context, {name} is a link to {os.readlink(path)}, which is not in it")
        if path.is_dir():
            yield from _below(root, name, ignored, [*within, here])
        elif path.is_file():
            if not is_left_out:
                yield Sent(_named(name), path, stat.S_IMODE(path.stat().st_mode))
        else:
            raise InvalidRequest(
                f"in the context, {name} is no file, folder or link to one", hint=f"leave it out by {_IGNORE}"
            )


def _named(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"in the context, the name {name!r} is not UTF-8") from error
    return name


class Form:
    """A form, read like a file: from the start again after `seek(0)`. Its files are read as it is."""

    def __init__(self, fields: Mapping[str, str], files: Sequence[Sent]) -> None:
        self._fields, self._files = fields, files
        self._boundary = secrets.token_hex(16)
        self._pieces = self._made()
        self._held = b""
        self._position = 0

    @property
    def media_type(self) -> str:
        """Its Content-Type."""
        return f"multipart/form-data; boundary={self._boundary}"

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return how many bytes have been read."""
        return self._position

    def seek(self, position: int) -> int:
        """Go back to the start, which is the only place that can be gone to."""
        if position != 0:
            raise OSError("a form is read from its start")
        self._pieces, self._held, self._position = self._made(), b"", 0
        return 0

    def read(self, size: int = PIECE_BYTES) -> bytes:
        """Return what comes next, at most `size` bytes; nothing at the end."""
        held = [self._held]
        length = len(self._held)
        while length < size and (piece := next(self._pieces, b"")):
            held.append(piece)
            length += len(piece)
        joined = b"".join(held)
        self._held = joined[size:]
        self._position += min(size, length)
        return joined[:size]

    def _made(self) -> Iterator[bytes]:
        for name, value in self._fields.items():
            yield self._head(name) + b"\r\n" + value.encode() + b"\r\n"
        for sent in self._files:
            mode = "" if sent.mode is None else f"X-File-Mode: {sent.mode:o}\r\n"
            yield self._head(sent.name, '; filename="file"') + mode.encode() + b"\r\n"
            with sent.path.open("rb") as file:
                while piece := file.read(PIECE_BYTES):
                    yield piece
            yield b"\r\n"
        yield f"--{self._boundary}--\r\n".encode()

    def _head(self, name: str, more: str = "") -> bytes:
        named = f'Content-Disposition: form-data; name="{name.translate(_ESCAPES)}"{more}'
        return f"--{self._boundary}\r\n{named}\r\n".encode()
