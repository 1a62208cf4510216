"""Files and folders in the guest. Paths are absolute; bytes are exact; a write replaces a file whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING

import httpx2

from torpor.errors import NotFound
from torpor.sdk._sync import transfer
from torpor.sdk.body import Body, Source
from torpor.sdk.foreign import checked, decoded
from torpor.sdk.http import Call
from torpor.sdk.lines import LineReader
from torpor.sdk.orders import GuestPath, file_query, guest_path
from torpor.sdk.results import FileEntry, Tally, Transferred
from torpor.wire.public import DirListing, Rename, Written

if TYPE_CHECKING:
    from torpor.sdk._sync.client import Client

Entries = list[FileEntry]
Progress = Callable[[Transferred], object]


class Filesystem:
    """The files of one sandbox: `sbx.filesystem`.

    Every call raises InvalidRequest for a relative path, NotFound for a missing file, Forbidden where `user` may not,
    InvalidRequest where a folder stands in place of a file or the other way round, OutOfSpace when the guest's disk is
    full.
    """

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self._client = client
        self._path = f"/sandboxes/{sandbox_id}/fs"

    def read(self, path: GuestPath) -> bytes:
        """Return a file's bytes. What does not fit in memory is for `download`."""
        return self._client.fetch(self._call("GET", path))

    def read_text(self, path: GuestPath, encoding: str = "utf-8") -> str:
        """Return a file's text. Raises UnicodeDecodeError if it is not text in this encoding."""
        return (self.read(path)).decode(encoding)

    def write(self, path: GuestPath, data: Source, *, mode: int | None = None, user: str | None = None) -> int:
        """Make a file of `data` and return its size in bytes. A reader sees the old file or the new one, never a part.

        `data` is text (sent as UTF-8), bytes, an open file, or an iterator of either. Missing parents are made. `mode`
        are the permission bits, `user` the owner (default root).
        """
        return self.put(Body(data), file_query(path, mode=mode, user=user))

    def append(self, path: GuestPath, data: Source, *, user: str | None = None) -> int:
        """Add to the end of a file, made if there is none, and return how many bytes were added."""
        return self.put(Body(data), file_query(path, user=user, append=True), repeatable=False)

    def list(self, path: GuestPath) -> Entries:
        """Return the entries of one folder, by name."""
        return (self._client.fetch_as(DirListing, self._call("GET", path, "/dir"))).entries

    def stat(self, path: GuestPath) -> FileEntry:
        """Describe what stands at a path. A link is described, not followed."""
        return self._client.fetch_as(FileEntry, self._call("GET", path, "/stat"))

    def exists(self, path: GuestPath) -> bool:
        """Tell whether anything stands at a path. Raises NotFound if it is the sandbox that does not exist."""
        try:
            self.stat(path)
        except NotFound:
            self._client.fetch(Call("GET", self._path.removesuffix("/fs")))
            return False
        return True

    def mkdir(self, path: GuestPath, *, mode: int | None = None, user: str | None = None) -> None:
        """Make a folder and its missing parents. One that is there already is left as it is."""
        call = Call("POST", f"{self._path}/dir", params=file_query(path, mode=mode, user=user), repeatable=True)
        self._client.fetch(call)

    def remove(self, path: GuestPath, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty folder; with `recursive` a folder with all that is in it."""
        self._client.fetch(Call("DELETE", self._path, params=file_query(path, recursive=recursive)))

    def rename(self, source: GuestPath, target: GuestPath) -> None:
        """Move a file or folder, replacing a file at `target`."""
        order = checked(Rename, source=guest_path(source), target=guest_path(target))
        self._client.fetch(Call("POST", f"{self._path}/rename", content=order.model_dump_json().encode()))

    def walk(self, path: GuestPath) -> Iterator[FileEntry]:
        """Yield everything below a folder, parents before children. Links are not followed."""
        response = self._client.open(self._call("GET", path, "/walk"))
        lines = LineReader()
        try:
            for chunk in self._client.chunks(response):
                for line in lines.feed(chunk):
                    yield decoded(FileEntry, line)
        finally:
            response.close()

    def upload(
        self,
        local: str | os.PathLike[str] | IO[bytes],
        remote: GuestPath,
        *,
        user: str | None = None,
        on_progress: Progress | None = None,
    ) -> Transferred:
        """Send a file (a path or an open file) or a folder with all that is in it, in bounded memory.

        A folder's contents become the contents of `remote`. Permission bits are kept. A link to a file is sent as that
        file; links to folders and to nothing are left out and named in the result. `on_progress` is told what was
        moved so far, again and again.

        Raises OSError for what is wrong on this side.
        """
        tally = Tally(on_progress)
        transfer.upload(self, local, guest_path(remote), user, tally)
        return tally.so_far()

    def download(
        self, remote: GuestPath, local: str | os.PathLike[str] | IO[bytes], *, on_progress: Progress | None = None
    ) -> Transferred:
        """Fetch a file (to a path or into an open file) or a folder with all that is in it, in bounded memory.

        Each file appears whole or not at all. A folder's contents become the contents of `local`, and nothing is ever
        written outside it, whatever names the guest claims. A link to a file is fetched as that file; links to
        folders and to nothing are left out and named in the result. `on_progress` is told what was moved so far, again
        and again.

        Raises OSError for what is wrong on this side, InvalidRequest for a name that cannot be a file here.
        """
        tally = Tally(on_progress)
        transfer.download(self, guest_path(remote), local, tally)
        return tally.so_far()

    def fetch_into(
        self,
        remote: GuestPath,
        sink: IO[bytes],
        *,
        restartable: bool,
        on_fetched: Callable[[int], object] | None = None,
    ) -> int:
        """Fetch a file's bytes into an open file and return how many. `restartable`: it may be emptied to try again.

        `on_fetched` is told how many bytes have come so far.
        """
        call = Call("GET", self._path, params=file_query(remote), repeatable=restartable)

        def poured(response: httpx2.Response) -> int:
            return transfer.pour(self._client.chunks(response), sink, restartable, on_fetched)

        return self._client.perform(call, poured)

    def put(self, body: Body, query: dict[str, str], *, repeatable: bool = True) -> int:
        """Make a file of a request's body, as `write` does, and return how many bytes it took."""
        call = Call("PUT", self._path, params=query, body=body, repeatable=repeatable)
        return (self._client.fetch_as(Written, call)).bytes

    def _call(self, method: str, path: GuestPath, kind: str = "") -> Call:
        return Call(method, f"{self._path}{kind}", params=file_query(path))
