"""File operations that end at once, and the beginning of those that stream."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torpor_guest.accounts import Account, Accounts, acting
from torpor_guest.connection import Stream
from torpor_guest.entries import Entry, entry_of
from torpor_guest.loop import Loop
from torpor_guest.refusal import from_os_error, invalid, shown
from torpor_guest.requests import Request
from torpor_guest.transfers import Appendix, Download, Draft, Upload, make_folders
from torpor_guest.trees import Listing, Removal

Serve = Callable[[Stream, Request], None]


class Files:
    """Serves the file operations. Each raises Refusal, or closes the stream itself, at once or later."""

    def __init__(self, loop: Loop, accounts: Accounts) -> None:
        self._loop, self._accounts = loop, accounts

    def operations(self) -> dict[str, Serve]:
        """Return the operations by name."""
        return {
            "read": self.read,
            "write": self.write,
            "stat": self.stat,
            "list": self.list,
            "walk": self.walk,
            "mkdir": self.mkdir,
            "remove": self.remove,
            "rename": self.rename,
        }

    def _account(self, request: Request) -> Account:
        return self._accounts.find(request.optional_text("user"))

    def read(self, stream: Stream, request: Request) -> None:
        """`read` {path, user?}: DATA, then RESULT {bytes}."""
        path = request.path("path")
        with _telling(path):
            Download(stream, path, self._account(request))

    def write(self, stream: Stream, request: Request) -> None:
        """`write` {path, mode?, user?, append?}, DATA, END: RESULT {bytes}."""
        path, account = request.path("path"), self._account(request)
        mode = request.optional_whole("mode", 0, 0o7777)
        as_user = request.optional_text("user") is not None
        with _telling(path):
            draft = (
                Appendix(path, account, mode) if request.flag("append") else Draft(path, account, mode, as_user=as_user)
            )
        Upload(stream, path, draft)

    def stat(self, stream: Stream, request: Request) -> None:
        """`stat` {path, user?}: RESULT is an entry; a link is described, not followed."""
        path, account = request.path("path"), self._account(request)
        self._accounts.refresh()
        with _telling(path), acting(account):
            entry: Entry = entry_of(path, self._accounts)
        stream.result(entry)

    def list(self, stream: Stream, request: Request) -> None:
        """`list` {path, user?}: the entries of one folder as lines, by name; RESULT {entries}."""
        path = request.path("path")
        with _telling(path):
            Listing(stream, path, (self._account(request), self._accounts), deep=False)

    def walk(self, stream: Stream, request: Request) -> None:
        """`walk` {path, user?}: everything below a folder as lines, parents first, by name; RESULT {entries}."""
        path = request.path("path")
        with _telling(path):
            Listing(stream, path, (self._account(request), self._accounts), deep=True)

    def mkdir(self, stream: Stream, request: Request) -> None:
        """`mkdir` {path, mode?, user?}: with parents; a folder that is there already is success and keeps its mode."""
        path, account = request.path("path"), self._account(request)
        mode = request.optional_whole("mode", 0, 0o7777)
        with _telling(path), acting(account):
            if not os.path.isdir(path):
                make_folders(path, 0o755)
                if mode is not None:
                    os.chmod(path, mode)
        stream.result({})

    def remove(self, stream: Stream, request: Request) -> None:
        """`remove` {path, recursive?, user?}: a link is removed itself."""
        path, account = request.path("path"), self._account(request)
        recursive = request.flag("recursive")
        with _telling(path):
            with acting(account):
                status = os.lstat(path)
                self._refuse_root(path, status)
                is_folder = stat.S_ISDIR(status.st_mode)
                if not is_folder:
                    os.unlink(path)
                elif not recursive:
                    os.rmdir(path)
            if is_folder and recursive:
                Removal(self._loop, stream, path, account)
                return
        stream.result({})

    @staticmethod
    def _refuse_root(path: bytes, status: os.stat_result) -> None:
        root = os.stat("/")
        if os.path.basename(path) in (b"", b".", b"..") or (status.st_dev, status.st_ino) == (root.st_dev, root.st_ino):
            raise invalid(f"{shown(path)} cannot be removed")

    def rename(self, stream: Stream, request: Request) -> None:
        """`rename` {source, target, user?}: replaces a file at the target."""
        source, target, account = request.path("source"), request.path("target"), self._account(request)
        with _telling(source), acting(account):
            os.lstat(source)
        with _telling(target), acting(account):
            os.rename(source, target)
        stream.result({})


@contextmanager
def _telling(path: bytes) -> Iterator[None]:
    """Translate a failed system call about `path`. Refusals pass."""
    try:
        yield
    except OSError as error:
        raise from_os_error(error, path) from error
