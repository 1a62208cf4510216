"""File contents: `read` and `write`."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from contextlib import suppress

from torpor_guest import protocol
from torpor_guest.accounts import Account, acting
from torpor_guest.connection import SendsOnly, Stream
from torpor_guest.refusal import Refusal, from_os_error, invalid, shown

_MAX_LINKS = 40
# So many bytes are handed to the disk at a time while more arrive, so that the fsync at the end, for which everybody
# waits, is short.
_FLUSH_STEP = 4 * 1024 * 1024
# So much of a file stays in the page cache; of what is beyond, a passing transfer keeps nothing there. A guest's
# cache is
# memory of the host, and is saved with the guest.
_CACHED = 16 * 1024 * 1024
_SYNC_FILE_RANGE_WRITE = 2
_libc = ctypes.CDLL(None)
TEMPORARY_PREFIX = b".torpor-"


def open_to_read(path: bytes, account: Account) -> int:
    """Open a regular file with the user's rights. Raises OSError or Refusal.

    It is looked at first, because opening alone can have effects on a device, or never return on a FIFO.
    """
    with acting(account):
        _need_regular(os.stat(path), path)
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _need_regular(os.fstat(fd), path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _need_regular(status: os.stat_result, path: bytes) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise invalid(f"{shown(path)} is a device, pipe or socket, not a file")


class Download(SendsOnly):
    """Sends a file's bytes, read straight into frames as the host takes them."""

    sub = protocol.OUTPUT

    def __init__(self, stream: Stream, path: bytes, account: Account) -> None:
        self._stream, self._path = stream, path
        self._fd = open_to_read(path, account)
        self._sent = self._uncached = 0
        stream.operation = self
        stream.ready(self)

    def fill(self, room: memoryview) -> int:
        """Read the next bytes."""
        if self._fd < 0:
            return 0
        try:
            size = os.readv(self._fd, [room])
        except OSError as error:
            self._close()
            raise from_os_error(error, self._path) from error
        self._sent += size
        if self._sent - self._uncached >= _FLUSH_STEP:
            _uncache(self._fd, self._sent)
            self._uncached = self._sent
        if size == 0:
            self._close()
            self._stream.result({"bytes": self._sent})
        return size

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def on_cancel(self) -> None:
        self._close()
        self._stream.refuse(Refusal("cancelled", "the host gave up"))

    def on_drop(self) -> None:
        self._close()


class Draft:
    """A file under way. Raises OSError or Refusal; after a failure `discard` leaves nothing behind."""

    def __init__(self, path: bytes, account: Account, mode: int | None, *, as_user: bool) -> None:
        self._account, self._mode = account, mode
        self._size = self._flushed = 0
        with acting(account):
            self._target = _follow(path)
            old = _existing(self._target)
            if old is None:
                make_folders(os.path.dirname(self._target), 0o755)
            self._fd, self._name = self._create()
        self._old = old
        # An existing file keeps its owner, unless a user was named: then it is his, as the new file is by itself.
        self._owner = (old.st_uid, old.st_gid) if old is not None and not as_user else None

    def _create(self) -> tuple[int, bytes]:
        folder = os.path.dirname(self._target)
        while True:
            name = os.path.join(folder, TEMPORARY_PREFIX + os.urandom(8).hex().encode())
            with suppress(FileExistsError):
                return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), name

    def write(self, data: memoryview) -> None:
        """Add bytes."""
        _write(self._fd, data)
        self._size += len(data)
        if self._size - self._flushed >= _FLUSH_STEP:
            _begin_flush(self._fd, self._flushed, self._size - self._flushed)
            _uncache(self._fd, self._flushed)  # what was handed over before this is on the disk by now
            self._flushed = self._size

    def publish(self) -> None:
        """Make it durable and put it in its place, in one step for whoever reads it.

        The fsync takes as long as the disk needs for the last few MiB, and everybody waits for it.
        """
        if self._owner is not None:
            os.fchown(self._fd, *self._owner)
        os.fchmod(self._fd, self._final_mode())
        os.fsync(self._fd)
        _uncache(self._fd, self._size)
        os.close(self._fd)
        self._fd = -1
        with acting(self._account):
            os.rename(self._name, self._target)

    def _final_mode(self) -> int:
        if self._mode is not None:
            return self._mode
        return 0o644 if self._old is None else stat.S_IMODE(self._old.st_mode)

    def discard(self) -> None:
        """Remove it. Not to be called after it was published."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with suppress(FileNotFoundError):
            os.unlink(self._name)


class Appendix:
    """Bytes added to a file in place. What was written before a failure stays."""

    def __init__(self, path: bytes, account: Account, mode: int | None) -> None:
        with acting(account):
            target = _follow(path)
            if _existing(target) is None:
                make_folders(os.path.dirname(target), 0o755)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            self._fd = os.open(target, flags, 0o644)
            if mode is not None:
                try:
                    os.fchmod(self._fd, mode)
                except OSError:
                    self.discard()
                    raise

    def write(self, data: memoryview) -> None:
        """Add bytes."""
        _write(self._fd, data)

    def publish(self) -> None:
        """Make it durable."""
        os.fsync(self._fd)
        os.close(self._fd)
        self._fd = -1

    def discard(self) -> None:
        """Close it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _write(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _uncache(fd: int, end: int) -> None:
    """Drop from the page cache what a file has there between _CACHED and `end`, where it is on the disk."""
    if end > _CACHED:
        os.posix_fadvise(fd, _CACHED, end - _CACHED, os.POSIX_FADV_DONTNEED)


def _begin_flush(fd: int, start: int, count: int) -> None:
    """Ask the kernel to begin to write a part of a file to the disk; only a hint, so that it fails is no matter."""
    _libc.sync_file_range(fd, ctypes.c_int64(start), ctypes.c_int64(count), _SYNC_FILE_RANGE_WRITE)


def _follow(path: bytes) -> bytes:
    """Return the file that `path` leads to through symbolic links, which need not exist. Raises OSError."""
    for _ in range(_MAX_LINKS):
        try:
            link = os.readlink(path)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):  # no link, or nothing there
                return path
            raise
        path = os.path.join(os.path.dirname(path), link)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _existing(path: bytes) -> os.stat_result | None:
    """Return the status of a regular file that may be written, or None where there is nothing.

    Raises OSError or Refusal.
    """
    if os.path.basename(path) in (b"", b".", b".."):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    _need_regular(status, path)
    if not os.access(path, os.W_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return status


def make_folders(path: bytes, mode: int) -> None:
    """Make a folder and its missing parents (0755). Raises FileExistsError where a file stands there, or OSError."""
    missing: list[bytes] = []
    while not os.path.isdir(path):
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with suppress(FileExistsError):  # somebody else made it meanwhile, or it is "name/.." of one made just now
            os.mkdir(folder, mode if folder is missing[0] else 0o755)


class Upload:
    """Takes a file's bytes from the host."""

    def __init__(self, stream: Stream, path: bytes, draft: Draft | Appendix) -> None:
        self._stream, self._path = stream, path
        self._draft: Draft | Appendix | None = draft
        self._received = 0
        stream.operation = self

    def on_data(self, payload: memoryview) -> None:
        if self._draft is None:
            return
        try:
            self._draft.write(payload)
        except OSError as error:
            self._discard()
            raise from_os_error(error, self._path) from error
        self._received += len(payload)
        self._stream.consumed(len(payload))

    def on_end(self) -> None:
        if self._draft is None:
            return
        try:
            self._draft.publish()
        except OSError as error:
            self._discard()
            raise from_os_error(error, self._path) from error
        self._draft = None
        self._stream.result({"bytes": self._received})

    def on_cancel(self) -> None:
        self._discard()
        self._stream.refuse(Refusal("cancelled", "the host gave up"))

    def on_drop(self) -> None:
        self._discard()

    def _discard(self) -> None:
        draft, self._draft = self._draft, None
        if draft is not None:
            draft.discard()
