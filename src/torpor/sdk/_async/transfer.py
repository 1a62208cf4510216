"""Whole files and folders, in bounded memory."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

from torpor.errors import InvalidRequest, NotFound
from torpor.sdk.body import PIECE_BYTES, Body
from torpor.sdk.local import Target, folder_items, replacing
from torpor.sdk.orders import file_query
from torpor.sdk.results import FileEntry, Tally
from torpor.sdk.waiting import async_offload

if TYPE_CHECKING:
    from torpor.sdk._async.filesystem import AsyncFilesystem

# What a fetched file may do here, where the guest did not say.
_DEFAULT_MODE = 0o644


async def upload(
    files: AsyncFilesystem, local: str | os.PathLike[str] | IO[bytes], remote: str, user: str | None, tally: Tally
) -> None:
    """Send a file, an open file, or a folder."""
    if not isinstance(local, str | os.PathLike):
        tally.moved(await files.put(Body(local, tally.moving), file_query(remote, user=user)))
        return
    path = Path(local)
    if await async_offload(path.is_dir):
        await _upload_folder(files, path, remote, user, tally)
    else:
        await _upload_file(files, path, remote, user, tally)


async def download(
    files: AsyncFilesystem, remote: str, local: str | os.PathLike[str] | IO[bytes], tally: Tally
) -> None:
    """Fetch a file to a path or into an open file, or a folder."""
    if not isinstance(local, str | os.PathLike):
        tally.moved(await files.fetch_into(remote, local, restartable=False, on_fetched=tally.moving))
        return
    entry = await files.stat(remote)
    if entry.is_dir:
        await _download_folder(files, remote, Path(local), tally)
    else:
        mode = _DEFAULT_MODE if entry.is_symlink else entry.mode
        await _download_file(files, remote, Path(local), mode, tally)


async def pour(
    chunks: AsyncIterator[bytes], sink: IO[bytes], restart: bool, on_fetched: Callable[[int], object] | None
) -> int:
    """Write chunks into an open file, in large pieces, and return how many bytes. `restart`: empty the file first.

    `on_fetched` is told how many bytes have come so far.
    """
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
            if on_fetched is not None:
                on_fetched(total)
    await async_offload(_write_all, sink, b"".join(held))
    return total + size


async def _upload_file(files: AsyncFilesystem, path: Path, remote: str, user: str | None, tally: Tally) -> None:
    with path.open("rb", buffering=0) as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        tally.moved(await files.put(Body(file, tally.moving), file_query(remote, mode=mode, user=user)))


async def _upload_folder(files: AsyncFilesystem, folder: Path, remote: str, user: str | None, tally: Tally) -> None:
    await files.mkdir(remote, user=user)
    for item in folder_items(folder):
        target = f"{remote.rstrip('/')}/{item.name}"
        if item.is_skipped:
            tally.skip(item.name)
        elif item.is_dir:
            await files.mkdir(target, mode=item.mode, user=user)
        else:
            await _upload_file(files, item.path, target, user, tally)


async def _download_file(files: AsyncFilesystem, remote: str, path: Path, mode: int, tally: Tally) -> None:
    with replacing(path, mode) as file:
        count = await files.fetch_into(remote, file, restartable=True, on_fetched=tally.moving)
    tally.moved(count)


async def _download_folder(files: AsyncFilesystem, remote: str, folder: Path, tally: Tally) -> None:
    target = Target(remote, folder)
    target.begin()
    async for entry in files.walk(remote):
        if entry.is_dir:
            target.make_folder(entry)
        elif entry.is_symlink:
            await _download_linked(files, entry, target.place(entry), tally)
        else:
            await _download_file(files, entry.path, target.place(entry), entry.mode, tally)


async def _download_linked(files: AsyncFilesystem, entry: FileEntry, path: Path, tally: Tally) -> None:
    """Fetch the file that a link points to; one to a folder or to nothing is left out."""
    try:
        await _download_file(files, entry.path, path, _DEFAULT_MODE, tally)
    except (NotFound, InvalidRequest):
        tally.skip(entry.path)


def _write_all(sink: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[sink.write(view) :]
