"""Whole files and folders, in bounded memory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from torpor.errors import InvalidRequest, NotFound
from torpor.sdk.body import PIECE_BYTES, Body
from torpor.sdk.local import Target, folder_items, replacing
from torpor.sdk.orders import file_query
from torpor.sdk.results import FileEntry, Tally
from torpor.sdk.waiting import sync_offload

if TYPE_CHECKING:
    from torpor.sdk._sync.filesystem import Filesystem

# What a fetched file may do here, where the guest did not say.
_DEFAULT_MODE = 0o644


def upload(
    files: Filesystem, local: str | os.PathLike[str] | IO[bytes], remote: str, user: str | None, tally: Tally
) -> None:
    """Send a file, an open file, or a folder."""
    if not isinstance(local, str | os.PathLike):
        tally.moved(files.put(Body(local, tally.moving), file_query(remote, user=user)))
        return
    path = Path(local)
    if sync_offload(path.is_dir):
        _upload_folder(files, path, remote, user, tally)
    else:
        _upload_file(files, path, remote, user, tally)


def download(files: Filesystem, remote: str, local: str | os.PathLike[str] | IO[bytes], tally: Tally) -> None:
    """Fetch a file to a path or into an open file, or a folder."""
    if not isinstance(local, str | os.PathLike):
        tally.moved(files.fetch_into(remote, local, restartable=False, on_fetched=tally.moving))
        return
    entry = files.stat(remote)
    if entry.is_dir:
        _download_folder(files, remote, Path(local), tally)
    else:
        mode = _DEFAULT_MODE if entry.is_symlink else entry.mode
        _download_file(files, remote, Path(local), mode, tally)


def pour(chunks: Iterator[bytes], sink: IO[bytes], restart: bool, on_fetched: Callable[[int], object] | None) -> int:
    """Write chunks into an open file, in large pieces, and return how many bytes. `restart`: empty the file first.

    `on_fetched` is told how many bytes have come so far.
    """
    if restart:
        sink.seek(0)
        sink.truncate()
    held: list[bytes] = []
    size = total = 0
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size >= PIECE_BYTES:
            sync_offload(_write_all, sink, b"".join(held))
            total, size, held = total + size, 0, []
            if on_fetched is not None:
                on_fetched(total)
    sync_offload(_write_all, sink, b"".join(held))
    return total + size


def _upload_file(files: Filesystem, path: Path, remote: str, user: str | None, tally: Tally) -> None:
    with path.open("rb", buffering=0) as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        tally.moved(files.put(Body(file, tally.moving), file_query(remote, mode=mode, user=user)))


def _upload_folder(files: Filesystem, folder: Path, remote: str, user: str | None, tally: Tally) -> None:
    files.mkdir(remote, user=user)
    for item in folder_items(folder):
        target = f"{remote.rstrip('/')}/{item.name}"
        if item.is_skipped:
            tally.skip(item.name)
        elif item.is_dir:
            files.mkdir(target, mode=item.mode, user=user)
        else:
            _upload_file(files, item.path, target, user, tally)


def _download_file(files: Filesystem, remote: str, path: Path, mode: int, tally: Tally) -> None:
    with replacing(path, mode) as file:
        count = files.fetch_into(remote, file, restartable=True, on_fetched=tally.moving)
    tally.moved(count)


def _download_folder(files: Filesystem, remote: str, folder: Path, tally: Tally) -> None:
    target = Target(remote, folder)
    target.begin()
    for entry in files.walk(remote):
        if entry.is_dir:
            target.make_folder(entry)
        elif entry.is_symlink:
            _download_linked(files, entry, target.place(entry), tally)
        else:
            _download_file(files, entry.path, target.place(entry), entry.mode, tally)


def _download_linked(files: Filesystem, entry: FileEntry, path: Path, tally: Tally) -> None:
    """Fetch the file that a link points to; one to a folder or to nothing is left out."""
    try:
        _download_file(files, entry.path, path, _DEFAULT_MODE, tally)
    except (NotFound, InvalidRequest):
        tally.skip(entry.path)


def _write_all(sink: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[sink.write(view) :]
