"""Files that appear whole or not at all, and copies that cost as little as the file system allows."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torpor.kit.mounts import unmount_below

# linux/fs.h: _IOW(0x94, 9, int). Shares the source's blocks with the target until one of them is written.
_FICLONE = 0x40049409
_FULL = {errno.ENOSPC, errno.EDQUOT}
_NO_REFLINK = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS}

# What is copied by hand at once.
_PIECE_BYTES = 1024 * 1024

# linux/fs.h and fcntl.h, for renameat2.
_RENAME_EXCHANGE, _AT_FDCWD = 2, -100

# Names that begin so are litter if they are found at start: drafts never published, trees being removed.
DRAFT_PREFIX = ".draft-"
TRASH_PREFIX = ".trash-"


def is_full(error: OSError) -> bool:
    """Tell whether an error means that the disk, or what its owner may use of it, is full."""
    return error.errno in _FULL


def fsync_path(path: Path) -> None:
    """Make a file's bytes, or a folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace `path` by a file of these bytes: a reader, or a crash of this program, finds the old one or the new one.

    So does, if it is `durable`, a loss of power.
    """
    draft = path.with_name(f"{DRAFT_PREFIX}{path.name}-{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if durable:
        fsync_path(path.parent)


def write_new(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Make a file that must not exist, durably but for its name, which is for whoever makes its folder durable."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def draft_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder beside `target`, which becomes `target` if the block ends well and vanishes if it does not.

    Every file in it is made durable before the rename. A folder that stands at `target` is replaced in one step.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with replaced_folder(target) as draft:
        yield draft
        for entry in draft.rglob("*"):
            if entry.is_file() and not entry.is_symlink():
                fsync_path(entry)
        fsync_path(draft)
    fsync_path(target.parent)


@contextmanager
def replaced_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder as `draft_folder` does, and put it in the place of `target` in one step; not made durable."""
    with aside(target) as draft:
        yield draft
        if target.exists():
            _exchange(draft, target)  # now the draft's name has the old one, which is litter
        else:
            draft.rename(target)


@contextmanager
def aside(target: Path) -> Iterator[Path]:
    """Yield a new folder beside `target`, and remove it at the end unless the block has given it another name."""
    draft = target.with_name(f"{DRAFT_PREFIX}{target.name}-{secrets.token_hex(4)}")
    draft.mkdir(mode=0o700)
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _exchange(one: Path, other: Path) -> None:
    """Swap two names in one step, so that nobody finds either of them missing."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one), None, str(other))


def remove_tree(path: Path) -> None:
    """Remove a file or folder in one step for whoever looks at its name; what is left of a crash is litter for
    `sweep`.
    """
    aside = path.with_name(f"{TRASH_PREFIX}{path.name}-{secrets.token_hex(4)}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    _discard(aside)


def sweep(folder: Path) -> list[str]:
    """Remove the litter of earlier crashes right below `folder` and return the names."""
    if not folder.is_dir():
        return []
    litter = [entry for entry in folder.iterdir() if entry.name.startswith((DRAFT_PREFIX, TRASH_PREFIX))]
    for entry in litter:
        unmount_below(entry)  # a bake that was killed has left the mounts of the tree it was filling
        _discard(entry)
    return sorted(entry.name for entry in litter)


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)  # a draft of somebody who lives may have got its name meanwhile


def clone(source: Path, target: Path, *, mode: int = 0o600) -> bool:
    """Make `target`, which must not exist, a copy of `source`: by reflink where the file system can, else data only.

    Returns whether they share their blocks. Holes stay holes. Not made durable; if it fails, there is no target.
    """
    with source.open("rb") as reader:
        descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(descriptor, "wb") as writer:
                shared = _reflink(reader.fileno(), writer.fileno())
                if not shared:
                    _copy_sparse(reader.fileno(), writer.fileno())
                return shared
        except BaseException:
            target.unlink(missing_ok=True)
            raise


def can_reflink(folder: Path) -> bool:
    """Tell whether files in `folder` can share blocks, by trying it on two small files."""
    source, target = (folder / f"{DRAFT_PREFIX}reflink-{secrets.token_hex(4)}" for _ in range(2))
    try:
        source.write_bytes(b"\0" * 4096)
        with source.open("rb") as reader, target.open("wb") as writer:
            return _reflink(reader.fileno(), writer.fileno())
    finally:
        for path in (source, target):
            path.unlink(missing_ok=True)


def _reflink(source: int, target: int) -> bool:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno in _NO_REFLINK:
            return False
        raise
    return True


def _copy_sparse(source: int, target: int) -> None:
    size = os.fstat(source).st_size
    os.ftruncate(target, size)
    offset = 0
    while offset < size:
        try:
            start = os.lseek(source, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        offset = os.lseek(source, start, os.SEEK_HOLE)
        _copy_range(source, target, start, offset)


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    while start < end:
        copied = _copy_some(source, target, start, end)
        if copied == 0:
            raise OSError(errno.EIO, "the source became shorter while it was copied")
        start += copied


def _copy_some(source: int, target: int, start: int, end: int) -> int:
    try:
        return os.copy_file_range(source, target, end - start, start, start)
    except OSError as error:
        if error.errno not in _NO_REFLINK:  # it cannot be done in the kernel between these two file systems
            raise
    return os.pwrite(target, os.pread(source, min(end - start, _PIECE_BYTES), start), start)


def allocated_bytes(path: Path) -> int:
    """Return what a file, or all files below a folder, take up on disk; 0 where there is nothing."""
    if path.is_dir():
        return sum(allocated_bytes(entry) for entry in path.rglob("*") if entry.is_file())
    with suppress(FileNotFoundError):
        return path.stat().st_blocks * 512
    return 0


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
