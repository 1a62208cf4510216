"""The sandbox: one durable microVM, used for every step of a run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from torpor.errors import NotFound
from torpor.sdk._sync.client import Client
from torpor.sdk._sync.commands import Commands, encoded_stdin, follow
from torpor.sdk._sync.filesystem import Filesystem
from torpor.sdk.foreign import checked, checked_id
from torpor.sdk.http import Call, patience
from torpor.sdk.orders import creation, filters, new_ttl
from torpor.sdk.output import Callback, Watchers, require_success
from torpor.sdk.results import ExecResult, Page, SandboxInfo
from torpor.sdk.shared import shared_client
from torpor.sdk.waiting import sync_enterable
from torpor.wire.public import DEFAULT_TTL_SECONDS, ExecCommand, Lifecycle, SandboxPage, SandboxView


class Sandbox:
    """One microVM that keeps its files, installed packages and running processes from step to step.

        with Sandbox.create(template="agent", ttl_seconds=3600) as sbx:
            sbx.filesystem.write("/work/hello.py", "print('hello')")
            print((sbx.exec("python3 /work/hello.py")).stdout)

    Leaving the block deletes the sandbox unless it is persistent. Without the block, call `delete`; a sandbox that is
    forgotten ends with its ttl. Every call raises NotFound once the sandbox is gone, SandboxLost if its machine died,
    and HostUnreachable or OutcomeUnknown if the server cannot be reached or its answer was lost.
    """

    def __init__(self, client: Client, info: SandboxInfo) -> None:
        self._client = client
        self._info = info
        self._path = f"/sandboxes/{info.id}"
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
        call = Call(
            "POST",
            "/sandboxes",
            content=content,
            headers={"Idempotency-Key": secrets.token_hex(16)},
            repeatable=True,
            silence_s=None if request_timeout is None else patience(request_timeout),
        )
        client = client or shared_client()
        return cls(client, SandboxInfo.of(client.fetch_as(SandboxView, call)))

    @classmethod
    def connect(cls, id: str, *, client: Client | None = None) -> Sandbox:
        """Return the sandbox with this id. It is not woken and its ttl is not touched. Raises NotFound."""
        call = Call("GET", f"/sandboxes/{checked_id(id)}")
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

    @property
    def id(self) -> str:
        """Its id, by which `connect` finds it."""
        return self._info.id

    @property
    def info(self) -> SandboxInfo:
        """What the server last said of it; `refresh` asks again."""
        return self._info

    @property
    def name(self) -> str | None:
        """Its name, if it was given one."""
        return self._info.name

    @property
    def template(self) -> str:
        """The template it was made from."""
        return self._info.template

    @property
    def state(self) -> str:
        """The state it was last seen in."""
        return self._info.state

    @property
    def metadata(self) -> Mapping[str, str]:
        """Its labels."""
        return self._info.metadata

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

    def refresh(self) -> SandboxInfo:
        """Ask the server for its present state and return it."""
        self._info = SandboxInfo.of(self._client.fetch_as(SandboxView, Call("GET", self._path)))
        return self._info

    def set_ttl(self, seconds: int) -> SandboxInfo:
        """Let it end `seconds` from now, whatever its ttl was. Raises InvalidRequest for less than a second."""
        call = Call("PATCH", f"{self._path}/lifecycle", content=new_ttl(seconds))
        told = self._client.fetch_as(Lifecycle, call)
        self._info = dataclasses.replace(
            self._info, ttl_seconds=told.ttl_seconds, expires_at=told.expires_at, persistent=told.persistent
        )
        return self._info

    def logs(self) -> str:
        """Return what its machine wrote on the console."""
        return (self._client.fetch(Call("GET", f"{self._path}/logs"))).decode("utf-8", "replace")

    def delete(self) -> None:
        """End it and forget everything in it. Deleting it again does nothing."""
        # Where nobody knows it any more, what was asked for holds.
        with contextlib.suppress(NotFound):
            self._client.fetch(Call("DELETE", self._path))
        self._info = dataclasses.replace(self._info, state="deleted")

    def kill(self) -> None:
        """The same as `delete`."""
        self.delete()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._info.persistent:
            self.delete()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} template={self.template} state={self.state}>"
