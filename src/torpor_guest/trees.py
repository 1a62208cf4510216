"""Folders: `list`, `walk` and `remove`, in small steps and without ever following a link.

Each level is entered through the open descriptor of the one above, so a folder that is swapped for a link meanwhile
leads nowhere else, and paths may be longer than the kernel takes in one piece.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterator

from torpor_guest import protocol
from torpor_guest.accounts import Account, Accounts, acting
from torpor_guest.connection import SendsOnly, Stream
from torpor_guest.entries import Entry, entry_of
from torpor_guest.loop import Loop
from torpor_guest.refusal import Refusal, from_os_error, invalid, shown

# Files dealt with before others get their turn.
_STEP = 32
# Every level of a tree holds one descriptor open.
_MAX_DEPTH = 4096


class Level:
    """One open folder on the way down, with the names in it that are still to be visited."""

    def __init__(self, path: bytes, name: bytes, parent: Level | None) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self.path, self.name, self.parent = path, name, parent
        self.fd: int = os.open(name, flags, dir_fd=None if parent is None else parent.fd)
        try:
            self.names = deque(sorted(os.fsencode(entry) for entry in os.listdir(self.fd)))
        except BaseException:
            self.close()
            raise

    def below(self, name: bytes) -> bytes:
        """Return the path of a name in it."""
        return (b"" if self.path == b"/" else self.path) + b"/" + name

    def close(self) -> None:
        """Close the folder."""
        os.close(self.fd)


def open_top(path: bytes) -> Level:
    """Open the folder to begin with; `path` itself may be a link to it. Raises OSError."""
    if not stat.S_ISDIR(os.stat(path).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    # With "." at its end the last part of the path is followed if it is a link.
    top = Level(path + b"/.", path + b"/.", None)
    top.path = path
    return top


class Listing(SendsOnly):
    """Sends what is in a folder, one JSON entry a line: by name, and with `deep` each folder's contents right after it.

    It holds the names of the folders on the way down in memory, and of no others.
    """

    sub = protocol.OUTPUT

    def __init__(self, stream: Stream, path: bytes, acts: tuple[Account, Accounts], *, deep: bool) -> None:
        self._stream, self._deep = stream, deep
        self._account, self._accounts = acts
        self._accounts.refresh()
        with acting(self._account):
            self._levels = _open_listed(path)
        self._waiting = b""
        self._count = 0
        stream.operation = self
        stream.ready(self)

    def fill(self, room: memoryview) -> int:
        """Send the next lines."""
        if not self._waiting:
            with acting(self._account):
                self._waiting = b"".join(self._some_lines())
        size = min(len(room), len(self._waiting))
        room[:size] = self._waiting[:size]
        self._waiting = self._waiting[size:]
        if size == 0:
            self._stream.result({"entries": self._count})
        return size

    def _some_lines(self) -> Iterator[bytes]:
        for _ in range(_STEP):
            if not self._levels:
                return
            yield self._next_line()

    def _next_line(self) -> bytes:
        level = self._levels[-1]
        if not level.names:
            self._levels.pop().close()
            return b""
        name = level.names.popleft()
        path = level.below(name)
        try:
            entry: Entry = entry_of(path, self._accounts, name=name, folder=level.fd)
            if self._deep and entry["is_dir"]:
                self._descend(path, name, level)
        except FileNotFoundError:  # removed since the folder was read
            return b""
        except OSError as error:
            self._close()
            raise from_os_error(error, path) from error
        self._count += 1
        return protocol.dump(entry) + b"\n"

    def _descend(self, path: bytes, name: bytes, parent: Level) -> None:
        if len(self._levels) >= _MAX_DEPTH:
            self._close()
            raise invalid(f"{shown(path)} is more than {_MAX_DEPTH} folders deep")
        self._levels.append(Level(path, name, parent))

    def _close(self) -> None:
        while self._levels:
            self._levels.pop().close()

    def on_cancel(self) -> None:
        self._close()
        self._stream.refuse(Refusal("cancelled", "the host gave up"))

    def on_drop(self) -> None:
        self._close()


def _open_listed(path: bytes) -> list[Level]:
    try:
        return [open_top(path)]
    except NotADirectoryError:
        raise invalid(f"{shown(path)} is no folder") from None


class Removal(SendsOnly):
    """Removes a folder with all that is in it. What fails, fails in the middle: what was removed stays removed."""

    def __init__(self, loop: Loop, stream: Stream, path: bytes, account: Account) -> None:
        self._stream, self._path, self._account = stream, path, account
        with acting(account):
            # The last part is opened without following it, so a link put there meanwhile is an error, not a way out.
            self._levels = [Level(path, path, None)]
        stream.operation = self
        loop.step(self._work)

    def _work(self) -> bool:
        if not self._levels:
            return False
        try:
            with acting(self._account):
                for _ in range(_STEP):
                    if not self._levels:
                        break
                    self._remove_next()
        except OSError as error:
            self._fail(from_os_error(error, self._path))
        except Refusal as refusal:
            self._fail(refusal)
        else:
            if self._levels:
                return True
            self._stream.result({})
        return False

    def _remove_next(self) -> None:
        level = self._levels[-1]
        if level.names:
            name = level.names[0]
            if self._descended(level, name):
                return
            level.names.popleft()
            return
        self._levels.pop().close()
        if level.parent is None:
            os.rmdir(level.path)
        else:
            os.rmdir(level.name, dir_fd=level.parent.fd)
            level.parent.names.popleft()

    def _descended(self, level: Level, name: bytes) -> bool:
        """Remove a name that is no folder, or open the folder. Returns whether it was one."""
        try:
            status = os.stat(name, dir_fd=level.fd, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                os.unlink(name, dir_fd=level.fd)
                return False
            if len(self._levels) >= _MAX_DEPTH:
                raise invalid(f"{shown(level.path)} is more than {_MAX_DEPTH} folders deep")
            self._levels.append(Level(level.below(name), name, level))
        except FileNotFoundError:  # somebody else removed it
            return False
        return True

    def _fail(self, refusal: Refusal) -> None:
        self._close()
        self._stream.refuse(refusal)

    def _close(self) -> None:
        while self._levels:
            self._levels.pop().close()

    def on_cancel(self) -> None:
        self._fail(Refusal("cancelled", "the host gave up"))

    def on_drop(self) -> None:
        self._close()
