"""The sandbox: one durable microVM, used for every step of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from torpor.sdk._sync.client import Client
from torpor.sdk._sync.commands import Commands, encoded_stdin, follow
from torpor.sdk._sync.filesystem import Filesystem
from torpor.sdk._sync.life import Life
from torpor.sdk.foreign import checked
from torpor.sdk.http import Call, making, patience
from torpor.sdk.orders import Identified, creation, filters, sandbox_id, snapshot_id
from torpor.sdk.output import Callback, Watchers, require_success
from torpor.sdk.results import ExecResult, Page, SandboxInfo
from torpor.sdk.shared import shared_client
from torpor.sdk.waiting import sync_enterable
from torpor.wire.public import DEFAULT_TTL_SECONDS, ExecCommand, SandboxPage, SandboxView


class Sandbox(Life):
    """One microVM that keeps its files, installed packages and running processes from step to step.

        with Sandbox.create(template="agent", ttl_seconds=3600) as sbx:
            sbx.filesystem.write("/work/hello.py", "print('hello')")
            print((sbx.exec("python3 /work/hello.py")).stdout)
            sbx.hibernate()               # while nothing is to be done
            print((sbx.exec("ls /work")).stdout)  # wakes it

    Leaving the block deletes the sandbox unless it is persistent. Without the block, call `delete`; a sandbox that is
    forgotten ends with its ttl. Every call raises NotFound once the sandbox is gone, SandboxLost if its machine died,
    and HostUnreachable or OutcomeUnknown if the server cannot be reached or its answer was lost.
    """

    def __init__(self, client: Client, info: SandboxInfo) -> None:
        super().__init__(client, info)
        self.filesystem = Filesystem(client, info.id)
        # Other names of the same things.
        self.files = self.filesystem
        self.commands = Commands(self.exec)

    @classmethod
    @sync_enterable
    def create(  # noqa: PLR0913 - each is one thing to say about a sandbox
        cls,
        template: str = "base",
        *,
        ttl_seconds: int | None = DEFAULT_TTL_SECONDS,
        metadata: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        persistent: bool = False,
        name: str | None = None,
        cpu: int | None = None,
        memory_mb: int | None = None,
        disk_gb: int | None = None,
        request_timeout: float | None = None,
        client: Client | None = None,
    ) -> Sandbox:
        """Make a sandbox by restoring a template's snapshot, and return it running.

        `ttl_seconds` is the hard end of its life, counted from now; `persistent=True` means none. `metadata` are labels
        to find it by, `env` what every command of it starts from, `name` a unique name. `cpu`, `memory_mb` and
        `disk_gb` are the template's unless given. `request_timeout` is how long to wait for the server, in seconds.
        A create whose answer was lost is tried again under the same key, and makes one sandbox.

        Raises InvalidRequest (an unknown template is one), Conflict (the name is taken), NoCapacity, RestoreFailed.
        """
        content = creation(
            template=template,
            ttl_seconds=ttl_seconds,
            metadata=dict(metadata or {}),
            env=dict(env or {}),
            persistent=persistent,
            name=name,
            cpu=cpu,
            memory_mb=memory_mb,
            disk_gb=disk_gb,
        )
        return cls._made(content, request_timeout, client)

    @classmethod
    @sync_enterable
    def restore(  # noqa: PLR0913 - each is one thing to say about a sandbox
        cls,
        snapshot: Identified | str,
        *,
        ttl_seconds: int | None = DEFAULT_TTL_SECONDS,
        metadata: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        persistent: bool = False,
        name: str | None = None,
        cpu: int | None = None,
        memory_mb: int | None = None,
        disk_gb: int | None = None,
        request_timeout: float | None = None,
        client: Client | None = None,
    ) -> Sandbox:
        """Make a sandbox from a snapshot (or the id of one), and return it running where the snapshot was taken.

        It is a sandbox of its own, with an identity, a ttl and labels of its own; whose snapshot it was need not exist
        any more. `env` is added to what the commands of that one started from. The rest is as in `create`.

        Raises NotFound, SnapshotCorrupt, RestoreFailed, InvalidRequest, Conflict (the name is taken), NoCapacity.
        """
        content = creation(
            from_snapshot=snapshot_id(snapshot),
            ttl_seconds=ttl_seconds,
            metadata=dict(metadata or {}),
            env=dict(env or {}),
            persistent=persistent,
            name=name,
            cpu=cpu,
            memory_mb=memory_mb,
            disk_gb=disk_gb,
        )
        return cls._made(content, request_timeout, client)

    @classmethod
    def connect(cls, id: str, *, client: Client | None = None) -> Sandbox:
        """Return the sandbox with this id. It is not woken and its ttl is not touched. Raises NotFound."""
        call = Call("GET", f"/sandboxes/{sandbox_id(id)}")
        client = client or shared_client()
        return cls(client, SandboxInfo.of(client.fetch_as(SandboxView, call)))

    @classmethod
    def list(
        cls,
        metadata: Mapping[str, str] | None = None,
        state: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        *,
        client: Client | None = None,
    ) -> Page[Sandbox]:
        """Return one page of sandboxes, newest first: those with all of `metadata`, in `state`, at most `limit`.

        The page is a list; its `next_cursor`, given as `cursor`, asks for the next one and is None on the last.
        """
        client = client or shared_client()
        call = Call("GET", "/sandboxes", params=filters(metadata, state, limit, cursor))
        page = client.fetch_as(SandboxPage, call)
        return Page([cls(client, SandboxInfo.of(view)) for view in page.items], page.next_cursor)

    @classmethod
    def iterate(
        cls,
        metadata: Mapping[str, str] | None = None,
        state: str | None = None,
        *,
        client: Client | None = None,
    ) -> Iterator[Sandbox]:
        """Yield all sandboxes with all of `metadata`, in `state`, newest first, asking for page after page."""
        cursor: str | None = None
        while True:
            page = cls.list(metadata, state, cursor=cursor, client=client)
            yield from page
            cursor = page.next_cursor
            if cursor is None:
                return

    def exec(  # noqa: PLR0913 - each is one thing to say about a command
        self,
        cmd: str | Sequence[str],
        *,
        timeout_seconds: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: str | bytes | None = None,
        check: bool = False,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
        binary: bool = False,
    ) -> ExecResult:
        """Run a command and wait for its end. A code other than 0 is a result, not an error.

        `cmd`: a string is run by the guest's `/bin/sh -c`, a list of words as it is. `timeout_seconds` bounds its
        running time (None: no bound). `stdin` is at most 16 MiB; without it the command reads end-of-file. `env` is
        added to the sandbox's own. `on_stdout` and `on_stderr` are called with each piece of output as it arrives, as
        text that never cuts a character, or with `binary=True` as exact bytes. `check=True` raises for a code other
        than 0.

        The result holds the first 64 MiB of each stream (`truncated` says if there was more). It is never run twice: a
        call whose connection breaks raises, and is not tried again.

        Raises ExecTimeout (the command and its children are gone; it carries the output so far), CommandFailed (only
        with `check`), OutcomeUnknown (the connection broke; the command may still be running), InvalidRequest,
        NotFound, Conflict, SandboxLost.
        """
        order = checked(
            ExecCommand,
            cmd=cmd if isinstance(cmd, str) else [os.fspath(word) for word in cmd],
            timeout_seconds=timeout_seconds,
            cwd=cwd,
            env=dict(env or {}),
            user=user,
            stdin_base64=encoded_stdin(stdin),
            encoding="base64",
        )
        watchers = Watchers(on_stdout, on_stderr, binary)
        result = follow(self._client, f"{self._path}/exec/stream", order, watchers)
        if check:
            require_success(result)
        return result

    def logs(self) -> str:
        """Return what its machine wrote on the console."""
        return (self._client.fetch(Call("GET", f"{self._path}/logs"))).decode("utf-8", "replace")

    @classmethod
    def _made(cls, content: bytes, request_timeout: float | None, client: Client | None) -> Sandbox:
        call = making("/sandboxes", content, None if request_timeout is None else patience(request_timeout))
        client = client or shared_client()
        return cls(client, SandboxInfo.of(client.fetch_as(SandboxView, call)))
