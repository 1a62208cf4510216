"""The sandbox: one durable microVM, used for every step of a run."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Unpack

from torpor.sdk._sync import records
from torpor.sdk._sync.client import Client
from torpor.sdk._sync.code import Code
from torpor.sdk._sync.commands import Commands, follow
from torpor.sdk._sync.filesystem import Filesystem
from torpor.sdk._sync.process import Process
from torpor.sdk._sync.pty import Terminals
from torpor.sdk._sync.thinking import Thinking
from torpor.sdk._sync.trees import Trees
from torpor.sdk.http import Call, making, patience
from torpor.sdk.links import Route, check_target, link_order, linked, port_path, ports_of
from torpor.sdk.listening import Listened, process_id
from torpor.sdk.orders import (
    Care,
    Identified,
    Reachable,
    command,
    creation,
    filters,
    sandbox_id,
    snapshot_id,
    starting,
)
from torpor.sdk.output import Callback, Watchers, require_success
from torpor.sdk.results import Event, ExecResult, Page, Port, SandboxInfo
from torpor.sdk.shared import shared_client
from torpor.sdk.thinking import Pauses, Thought
from torpor.sdk.usage import SandboxUsage
from torpor.sdk.volumes import Volumes
from torpor.sdk.waiting import sync_enterable
from torpor.wire.ports import DEFAULT_LINK_SECONDS, LinkView
from torpor.wire.processes import ProcessList, ProcessView
from torpor.wire.public import DEFAULT_TTL_SECONDS, SandboxPage, SandboxView

Processes = list[Process]
Ports = list[Port]


class Sandbox(Code, Terminals, Trees):
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
        self._pauses = Pauses()

    @classmethod
    @sync_enterable
    def create(  # noqa: PLR0913 - each is one thing to say about a sandbox
        cls,
        template: str = "base",
        *,
        ttl_seconds: int | None = DEFAULT_TTL_SECONDS,
        metadata: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        network: Reachable | None = None,
        persistent: bool = False,
        name: str | None = None,
        cpu: int | None = None,
        memory_mb: int | None = None,
        disk_gb: int | None = None,
        volumes: Volumes | None = None,
        request_timeout: float | None = None,
        client: Client | None = None,
        **care: Unpack[Care],
    ) -> Sandbox:
        """Make a sandbox by restoring a template's snapshot, and return it running.

        `ttl_seconds` is the hard end of its life, counted from now; `persistent=True` means none. `metadata` are labels
        to find it by, `env` what every command of it starts from, `name` a unique name. `cpu`, `memory_mb` and
        `disk_gb` are the template's unless given. `request_timeout` is how long to wait for the server, in seconds.
        A create whose answer was lost is tried again under the same key, and makes one sandbox.

        `secrets` are in the environment of its commands too, and nowhere else: what is listed, logged or recorded of it
        has their names only. `network` is what it may reach: "internet" (public addresses), "none", or a list of host
        names, `*.example.com` for all below one, and IPv4 networks, and nothing else. Without it that is the internet,
        or nothing on a server that has no network for sandboxes.

        `volumes` are attached for its whole life: `{"data": "/data"}` mounts the volume `data` at /data to be written,
        `[{"name": "data", "path": "/data", "read_only": True}]` to be read, and `["data"]` at /volumes/data. One
        sandbox writes to a volume, or any number read it. What is in it is there when the sandbox is gone.

        The server looks after it of its own accord where `care` says so. After `idle_timeout_seconds` with nothing in
        flight `on_idle` is done, "hibernate" or "delete". `on_crash="restore"` puts it back to its last snapshot when
        its machine dies. Checkpoints are taken every `checkpoint_every_seconds` of running and after every
        `checkpoint_every_execs` commands, and the newest `checkpoint_keep` (3) of them kept.

        Raises InvalidRequest (an unknown template is one), Conflict (the name is taken), NoCapacity, RestoreFailed.
        """
        content = creation(
            care,
            template=template,
            ttl_seconds=ttl_seconds,
            metadata=dict(metadata or {}),
            env=dict(env or {}),
            secrets=secrets,
            network=network,
            persistent=persistent,
            name=name,
            cpu=cpu,
            memory_mb=memory_mb,
            disk_gb=disk_gb,
            volumes=volumes,
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
        secrets: Mapping[str, str] | None = None,
        network: Reachable | None = None,
        persistent: bool = False,
        name: str | None = None,
        cpu: int | None = None,
        memory_mb: int | None = None,
        disk_gb: int | None = None,
        request_timeout: float | None = None,
        client: Client | None = None,
        **care: Unpack[Care],
    ) -> Sandbox:
        """Make a sandbox from a snapshot (or the id of one), and return it running where the snapshot was taken.

        It is a sandbox of its own, with an identity, a ttl and labels of its own; whose snapshot it was need not exist
        any more. `env` is added to what the commands of that one started from. The snapshot holds that one's secrets:
        they are kept, or with `secrets` replaced by these, all of them, before anything runs; `{}` leaves none. What
        runs already has the old ones. `network` is as that one's was unless it is given. The rest is as in `create`.

        Raises NotFound, SnapshotCorrupt, RestoreFailed, InvalidRequest, Conflict (the name is taken), NoCapacity.
        """
        content = creation(
            care,
            from_snapshot=snapshot_id(snapshot),
            ttl_seconds=ttl_seconds,
            metadata=dict(metadata or {}),
            env=dict(env or {}),
            secrets=secrets,
            network=network,
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
        call whose connection breaks goes on listening to the same command where it was, until that has been no use for
        three minutes (`Retry.reattach_s`), so that a restart of the server is no more than a delay. Who is interrupted
        in it, by Ctrl-C, cancellation or an error in a callback, ends the command; `start` makes one that runs on.

        Raises ExecTimeout (the command and its children are gone; it carries the output so far), CommandFailed (only
        with `check`), OutcomeUnknown (the server stayed away; the command may still be running), InvalidRequest,
        NotFound, Conflict, SandboxLost.
        """
        order = command(cmd, timeout_seconds=timeout_seconds, cwd=cwd, env=env, user=user, stdin=stdin)
        watchers = Watchers(on_stdout, on_stderr, binary)
        result = follow(self._client, Listened(self._path, order), watchers)
        if check:
            require_success(result)
        return result

    def start(  # noqa: PLR0913 - each is one thing to say about a command
        self,
        cmd: str | Sequence[str],
        *,
        timeout_seconds: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: str | bytes | bool = False,
        terminal: tuple[int, int] | None = None,
    ) -> Process:
        """Start a command that runs on its own, and return it running; `attach` finds it again by its id.

        `stdin`: what it reads, or True to keep its input open for `write_stdin`; without it, it reads end-of-file. The
        `terminal`: the rows and columns of a terminal, which then is its stdin, stdout and stderr (`pty` is for talking
        with one). The rest is as in `exec`; without `timeout_seconds` it runs for as long as its sandbox does. A start
        whose answer was lost is tried again under the same key, and starts one.

        Raises InvalidRequest, NotFound, Conflict, SandboxLost.
        """
        given = None if isinstance(stdin, bool) else stdin
        order = command(cmd, timeout_seconds=timeout_seconds, cwd=cwd, env=env, user=user, stdin=given)
        call = making(f"{self._path}/processes", starting(order, open_stdin=stdin is True, terminal=terminal))
        return Process(self._client, self._client.fetch_as(ProcessView, call))

    def attach(self, id: str) -> Process:
        """Return the process with this id, which may have ended. Raises NotFound."""
        call = Call("GET", f"{self._path}/processes/{process_id(id)}")
        return Process(self._client, self._client.fetch_as(ProcessView, call))

    def processes(self) -> Processes:
        """Return what runs in it and has an id, and what has ended and is remembered, oldest first; `exec`s too."""
        told = self._client.fetch_as(ProcessList, Call("GET", f"{self._path}/processes"))
        return [Process(self._client, view) for view in told.items]

    def thinking(self) -> Thinking:
        """Let it hibernate while the block waits for something else, if the wait is long enough to be worth it.

            with sbx.thinking() as pause:
                plan = model.answer(prompt)
            print(pause)        # waited 12.4 s, asleep for 9.8 s of it

        It is hibernated once the wait has lasted longer than hibernating and waking take in this sandbox, measured as
        it goes; what the waits so far were like can make that later. While a call is using it, such as an `exec` in the
        block, it is not hibernated; one that comes later just wakes it. At the end of the block it is awake. One that
        is paused or hibernated when its time has come is left as it is, and the report says so. `thought` sums up all
        these waits.

        A hibernation that fails is told in the report and harms nothing. Leaving the block raises what keeps the
        sandbox from being woken, as `wake` does.
        """
        return Thinking(self, self._client, self._pauses)

    @property
    def thought(self) -> Thought:
        """What `thinking` has come to so far, on this object."""
        return self._pauses.thought

    def url(
        self, port: int, path: str = "/", *, expires_seconds: int = DEFAULT_LINK_SECONDS, route: Route = "host"
    ) -> str:
        """Return a link to `path` of the server that listens on a port in it: whoever has the link may use that server.

        It is good for `expires_seconds`, and ends with the sandbox and with the key that asks for it. Following it
        wakes the sandbox; asking for it does not, and nobody has to listen yet. With `route="host"` the server has a
        host of its own, such as `8080-sbx-....localhost`, which browsers know what to do with; with `route="path"` the
        link is to a path on the server's own host, for programs on machines whose resolver does not know such hosts.

        Raises InvalidRequest, NotFound.
        """
        check_target(path, route)
        # Nothing is kept of a link, so that one made twice is one too many for nobody.
        call = Call("POST", port_path(self._path, port), content=link_order(expires_seconds), repeatable=True)
        return linked(self._client.fetch_as(LinkView, call), path, route)

    def ports(self) -> Ports:
        """Return on which TCP ports servers in it listen, by number. Wakes it.

        Raises NotFound, Conflict, SandboxLost.
        """
        told = self._client.fetch(Call("GET", f"{self._path}/ports"))
        return ports_of(told)

    def usage(self, since: datetime | None = None, until: datetime | None = None) -> SandboxUsage:
        """Return what it used from `since` to `until`, and what that costs; all of its life unless said otherwise."""
        return records.sandbox_usage(self._client, self.id, since, until)

    def events(
        self, cursor: str | None = None, *, follow: bool = False, types: Sequence[str] = ()
    ) -> Generator[Event, None]:
        """Yield what happened to it, oldest first: what came after `cursor` (an event's), of these `types` if given.

        With `follow` it goes on with each event as it happens, and a broken connection is made anew from the last one.
        """
        yield from records.events(self._client, f"{self._path}/events", cursor, follow=follow, types=types)

    def logs(self) -> str:
        """Return what its machine wrote on the console."""
        return (self._client.fetch(Call("GET", f"{self._path}/logs"))).decode("utf-8", "replace")

    @classmethod
    def _made(cls, content: bytes, request_timeout: float | None, client: Client | None) -> Sandbox:
        call = making("/sandboxes", content, None if request_timeout is None else patience(request_timeout))
        client = client or shared_client()
        return cls(client, SandboxInfo.of(client.fetch_as(SandboxView, call)))
