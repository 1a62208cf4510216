"""`/v1/sandboxes/{id}/fs`: a guest's files, as raw bytes both ways."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from torpor import errors
from torpor.control.api.answers import Piped
from torpor.control.api.deps import GuestPath, GuestUser, Mode, ThePlane, TheSandbox
from torpor.control.api.problems import refusals
from torpor.control.service import files
from torpor.control.service.files import Target
from torpor.wire.public import DirListing, FileEntry, Rename, Written

router = APIRouter(prefix="/v1/sandboxes/{id}", tags=["files"])

_REFUSALS = refusals(errors.NotFound, errors.Forbidden, errors.Conflict, errors.SandboxLost, errors.OutOfSpace)
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def _answering(media_type: str, description: str, schema: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    return {**_REFUSALS, 200: {"description": description, "content": {media_type: {"schema": schema}}}}


_FILE = _answering("application/octet-stream", "The file's bytes.", {"type": "string", "format": "binary"})
_TREE = _answering("application/x-ndjson", "One FileEntry a line, parents before children.", {"type": "string"})


async def _target(path: GuestPath, mode: Mode = None, user: GuestUser = None, append: bool = False) -> Target:
    return Target(path, mode, user, append)


@router.get("/fs", response_class=Response, responses=_FILE)
async def read_file(plane: ThePlane, owned: TheSandbox, path: GuestPath, user: GuestUser = None) -> Response:
    """Read a file."""
    return Piped(files.read(plane, owned, path, user), "application/octet-stream")


@router.put("/fs", responses=_REFUSALS, openapi_extra={"requestBody": {"required": True, "content": _BYTES}})
async def write_file(
    plane: ThePlane,
    owned: TheSandbox,
    request: Request,
    target: Annotated[Target, Depends(_target)],
) -> Written:
    """Replace a file in one step by the body's bytes, or extend it with `append`. Parent folders are made."""
    return await files.write(plane, owned, target, request.stream(), _length(request))


@router.delete("/fs", status_code=204, responses=_REFUSALS)
async def remove_file(plane: ThePlane, owned: TheSandbox, path: GuestPath, recursive: bool = False) -> None:
    """Remove a file, or a folder: an empty one, or any with `recursive`."""
    await files.remove(plane, owned, path, recursive)


@router.get("/fs/stat", responses=_REFUSALS)
async def stat_file(plane: ThePlane, owned: TheSandbox, path: GuestPath) -> FileEntry:
    """Describe a file, folder or link."""
    return await files.stat(plane, owned, path)


@router.get("/fs/dir", responses=_REFUSALS)
async def list_folder(plane: ThePlane, owned: TheSandbox, path: GuestPath) -> DirListing:
    """List a folder."""
    return await files.list_dir(plane, owned, path)


@router.post("/fs/dir", status_code=204, responses=_REFUSALS)
async def make_folder(
    plane: ThePlane, owned: TheSandbox, path: GuestPath, mode: Mode = None, user: GuestUser = None
) -> None:
    """Make a folder and its parents; fine if it exists."""
    await files.mkdir(plane, owned, Target(path, mode, user))


@router.post("/fs/rename", status_code=204, responses=_REFUSALS)
async def rename_file(plane: ThePlane, owned: TheSandbox, order: Rename) -> None:
    """Move a file or folder, replacing a file at the target."""
    await files.rename(plane, owned, order)


@router.get("/fs/walk", response_class=Response, responses=_TREE)
async def walk_tree(plane: ThePlane, owned: TheSandbox, path: GuestPath) -> Response:
    """Describe all that is below a folder."""
    return Piped(files.walk(plane, owned, path), "application/x-ndjson")


def _length(request: Request) -> int | None:
    length = request.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdecimal() else None
