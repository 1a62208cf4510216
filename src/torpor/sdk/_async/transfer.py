"""Whole files and folders, in bounded memory."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from torpor.errors import InvalidRequest, NotFound
from torpor.sdk.body import PIECE_BYTES
from torpor.sdk.local import Target, folder_items, replacing
from torpor.sdk.results import FileEntry, Transferred
from torpor.sdk.waiting import async_offload

if TYPE_CHECKING:
    from torpor.sdk._async.filesystem import AsyncFilesystem

# What a fetched file may do here, where the guest did not say.
_DEFAULT_MODE = 0o644


async def upload(
    files: AsyncFilesystem, local: str | os.PathLike[str] | IO[bytes], remote: str, user: str | None
) -> Transferred:
    """Send a file, an open file, or a folder."""
    if not isinstance(local, str | os.PathLike):
        return Transferred(1, await files.write(remote, local, user=user))
    path = Path(local)
    if await async_offload(path.is_dir):
        return await _upload_folder(files, path, remote, user)
    return Transferred(1, await _upload_file(files, path, remote, user))


async def download(files: AsyncFilesystem, remote: str, local: str | os.PathLike[str] | IO[bytes]) -> Transferred:
    """Fetch a file to a path or into an open file, or a folder."""
    if not isinstance(local, str | os.PathLike):
        return Transferred(1, await files.fetch_into(remote, local, restartable=False))
    entry = await files.stat(remote)
    if entry.is_dir:
        return await _download_folder(files, remote, Path(local))
    mode = _DEFAULT_MODE if entry.is_symlink else entry.mode
    return Transferred(1, await _download_file(files, remote, Path(local), mode))


async def pour(chunks: AsyncIterator[bytes], sink: IO[bytes], restart: bool) -> int:
    """Write chunks into an open file, in large pieces, and return how many bytes. `restart`: empty the file first."""
    if restart:
        sink.seek(0)
        sink.truncate()
    held: list[bytes] = []
    size = total = 0
    async for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size >= PIECE_BYTES:
            await async_offload(_write_all, sink, b"".join(held))
            total, size, held = total + size, 0, []
    await async_offload(_write_all, sink, b"".join(held))
    return total + size


async def _upload_file(files: AsyncFilesystem, path: Path, remote: str, user: str | None) -> int:
    with path.open("rb", buffering=0) as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        return await files.write(remote, file, mode=mode, user=user)


async def _upload_folder(files: AsyncFilesystem, folder: Path, remote: str, user: str | None) -> Transferred:
    await files.mkdir(remote, user=user)
    count = size = 0
    skipped: list[str] = []
    for item in folder_items(folder):
        target = f"{remote.rstrip('/')}/{item.name}"
        if item.is_skipped:
            skipped.append(item.name)
        elif item.is_dir:
            await files.mkdir(target, mode=item.mode, user=user)
        else:
            size += await _upload_file(files, item.path, target, user)
            count += 1
    return Transferred(count, size, tuple(skipped))


async def _download_file(files: AsyncFilesystem, remote: str, path: Path, mode: int) -> int:
    with replacing(path, mode) as file:
        return await files.fetch_into(remote, file, restartable=True)


async def _download_folder(files: AsyncFilesystem, remote: str, folder: Path) -> Transferred:
    target = Target(remote, folder)
    target.begin()
    count = size = 0
    skipped: list[str] = []
    async for entry in files.walk(remote):
        if entry.is_dir:
            target.make_folder(entry)
        elif (fetched := await _download_entry(files, entry, target.place(entry))) is None:
            skipped.append(entry.path)
        else:
            count, size = count + 1, size + fetched
    return Transferred(count, size, tuple(skipped))


async def _download_entry(files: AsyncFilesystem, entry: FileEntry, path: Path) -> int | None:
    """Fetch one file; None for a link to a folder or to nothing."""
    if not entry.is_symlink:
        return await _download_file(files, entry.path, path, entry.mode)
    try:
        return await _download_file(files, entry.path, path, _DEFAULT_MODE)
    except (NotFound, InvalidRequest):
        return None


def _write_all(sink: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[sink.write(view) :]
