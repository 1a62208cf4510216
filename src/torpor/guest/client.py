"""The host's side of a guest's agent: what can be asked of one running guest, in terms of the wire models.

Every method raises what `torpor.guest.channel` says, and `OutcomeUnknown` where the guest answers something that
makes no sense. Each may be cancelled at any time; the guest then stops what it was doing.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import time
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Literal, Self

from torpor.errors import Failed, InvalidRequest, OutcomeUnknown, RestoreFailed, TorporError, Unavailable
from torpor.guest.answers import Adopted, HooksRan, Moved, Thawed, chunks_of, entries_of, read
from torpor.guest.calls import Call
from torpor.guest.channel import Channel
from torpor.guest.commands import Commands
from torpor.guest.ports import Ports
from torpor.guest.refusals import clean
from torpor.model.identity import Identity
from torpor.model.template import Defaults
from torpor.wire.public import FileEntry

_ENTROPY_BYTES = 64
# The guest's wall clock after it was set may differ from ours by this and the time the call took, in seconds.
_CLOCK_TOLERANCE_S = 1.0
_PATIENCE_S = 20.0
# For the answer to be on its way, and for a guest that is a little late, beyond the time it was given.
_MARGIN_S = 2.0
# The guest ends hooks that take longer together.
_HOOKS_S = 120.0
# A listing as a whole, by about what its entries take as JSON: some 100 000 entries with names of usual length.
_ENTRY_BYTES = 200
_MAX_LISTED_BYTES = 32 * 1024 * 1024

Event = Literal["wake", "fork"]


async def connect(sock: socket.socket, *, timeout_s: float) -> Guest:
    """Return the guest behind a connected unix stream socket, which belongs to it from now on.

    Raises RestoreFailed, with nothing left open, if its agent does not answer in time or speaks another protocol
    version.
    """
    return Guest(await Channel.open(sock, timeout_s=timeout_s), patience_s=timeout_s)


class Guest(Commands, Ports):
    """One running guest. Methods may be called at the same time; `aclose` ends the line, not the guest.

    What has to do with commands is in `Commands`, what has to do with servers in the guest in `Ports`.
    """

    def __init__(self, channel: Channel, patience_s: float = _PATIENCE_S) -> None:
        """`patience_s`: how long the guest may take to adopt an identity or to thaw, in seconds."""
        super().__init__(channel)
        self._patience_s = patience_s

    @property
    def features(self) -> dict[str, Any]:
        """What the agent says about itself: `agent` (its version), `containment` ("cgroups" or "sessions"),
        `boot_id`, `pid`.
        """
        return self._channel.features

    @property
    def closed(self) -> asyncio.Event:
        """Set once the line is closed, by either end or by a breach of the protocol."""
        return self._channel.closed

    async def aclose(self) -> None:
        """Close the line. Idempotent. Calls under way raise OutcomeUnknown."""
        await self._channel.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # -- freeze and restore

    async def adopt(
        self,
        identity: Identity,
        *,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        thaw: bool = True,
        event: Event | None = None,
    ) -> int:
        """Give the guest its identity, the time and fresh entropy, and let everything of the user's run on.

        `env` is added to what every later command starts from; so are `secrets`, in place of all that the guest had
        (None: it keeps those). Without `thaw` everything of the user's stands still until `thaw`. Returns how many
        hooks the guest has for `event`. Passes a held line.

        Raises RestoreFailed unless the guest has confirmed all of it; InvalidRequest, with nothing sent, if `env` and
        `secrets` are too long.
        """
        began_ns = time.time_ns()
        request = {
            "op": "adopt",
            "sandbox_id": identity.sandbox_id,
            "hostname": identity.hostname,
            "entropy": base64.b64encode(os.urandom(_ENTROPY_BYTES)).decode(),
            "wall_ns": began_ns,
            "generation": began_ns,
            "env": None if env is None else dict(env),
            "secrets": None if secrets is None else dict(secrets),
            "thaw": thaw,
            "event": event,
        }
        try:
            adopted = read(Adopted, await self._tell(request, self._patience_s))
        except InvalidRequest as error:
            raise InvalidRequest("the sandbox's environment is longer than 4 MiB") from error
        except TorporError as error:
            raise RestoreFailed(f"the guest did not take its new identity: {error.message}") from error
        asked = (identity.sandbox_id, identity.hostname, began_ns)
        if (adopted.sandbox_id, adopted.hostname, adopted.generation) != asked:
            raise RestoreFailed("the guest confirmed another identity than the one it was given")
        if not _is_now(adopted.wall_ns, began_ns):
            raise RestoreFailed("the guest's clock is wrong after it was set")
        return adopted.hooks

    async def mount(self, bay: int, path: str, size: int, *, read_only: bool) -> None:
        """Have the volume of `size` bytes that was attached in a bay mounted. Passes a held line.

        Raises RestoreFailed unless the guest has confirmed that it is.
        """
        request = {"op": "mount", "bay": bay, "path": path, "bytes": size, "read_only": read_only}
        try:
            mounted = read(Moved, await self._tell(request, self._patience_s))
        except TorporError as error:
            raise RestoreFailed(f"a volume was not mounted: {error.message}", hint=error.hint) from error
        if mounted.bytes != size:
            raise RestoreFailed("the guest has mounted another volume than the one it was given")

    async def quiesce(
        self, *, timeout_s: float, settle: bool = False, hooks: bool = False, leaving: bool = False
    ) -> None:
        """Stop everything of the user's, as the last thing that is sent: from now on the line is held until `release`.

        What it wrote to volumes is in them then. What calls under way have to send is kept back. New calls wait; with
        `leaving` they raise Busy, and once the guest has confirmed the line outlasts its machine (`wait_suspended`).
        With `hooks` the guest's own hooks run first; with `settle` it writes its disks and tidies up last. Of a guest
        that stands still already nothing is
        asked again.

        Raises Failed if the guest refuses or is not ready in time (its processes run on), OutcomeUnknown if it does not
        answer. The line is held all the same, and `confirmed` tells whether the guest stands still.
        """
        self._channel.hold(leaving=leaving)
        if self.confirmed:
            return
        request = {"op": "quiesce", "timeout_s": timeout_s, "settle": settle, "hooks": hooks}
        await self._tell(request, timeout_s + _MARGIN_S)
        self._channel.confirmed = True

    @property
    def confirmed(self) -> bool:
        """Whether the guest has confirmed that it stands still, and was not told to go on since."""
        return self._channel.confirmed

    def release(self) -> None:
        """Send what was kept back and let new calls through. Idempotent; not possible while it is suspended."""
        self._channel.release()

    async def thaw(self) -> None:
        """Set the guest's clock and let everything of the user's run on. Passes a held line, and does not release it.

        Raises Failed if the guest refuses or its clock is wrong after it, OutcomeUnknown if it does not answer.
        """
        self._channel.confirmed = False
        began_ns = time.time_ns()
        thawed = read(Thawed, await self._tell({"op": "unquiesce", "wall_ns": began_ns}, self._patience_s))
        if not _is_now(thawed.wall_ns, began_ns):
            raise Failed("the guest's clock is wrong after it was set")

    async def run_hooks(self, event: Event) -> list[str]:
        """Run the guest's own hooks for `event`, which take a bounded time, and return the names of those that failed.

        Raises Failed if the guest refuses, OutcomeUnknown if it does not answer.
        """
        ran = read(HooksRan, await self._tell({"op": "hooks", "event": event}, _HOOKS_S, counts_held=False))
        return [clean(name) for name in ran.failed]

    @property
    def suspended(self) -> bool:
        """Whether the guest has left its machine and the line waits for `continue_on`."""
        return self._channel.suspended

    async def wait_suspended(self) -> None:
        """Return when a guest that was leaving, and has confirmed, has left its machine.

        All it had sent is read then and given to its calls; those under way wait. Raises OutcomeUnknown if the line
        was lost instead, as it is where the guest has not confirmed.
        """
        await self._channel.wait_suspended()

    async def continue_on(self, sock: socket.socket) -> None:
        """Go on over another socket, still held, with the guest as it was when it left; `sock` belongs to it from now.

        To be followed by `adopt` or `thaw`, and `release`. Raises Unavailable if the line is not suspended.
        """
        await self._channel.continue_on(sock)

    async def set_defaults(self, defaults: Defaults) -> None:
        """Give commands these where they say nothing of their own, in place of all that was told before.

        Raises InvalidRequest if the guest has no such user or group.
        """
        env = dict(defaults.env)
        await self._ask({"op": "defaults", "env": env, "cwd": defaults.cwd, "user": defaults.user})

    # -- files

    @asynccontextmanager
    async def read(self, path: str, *, user: str | None = None) -> AsyncIterator[AsyncIterator[bytes]]:
        """Read a file: yields its bytes in pieces. If it cannot be read the block is not entered."""
        async with self._call({"op": "read", "path": path, "user": user}) as call:
            first = await call.receive()
            chunks = chunks_of(call, first)
            async with aclosing(chunks):
                yield chunks

    async def write(
        self,
        path: str,
        chunks: AsyncIterable[bytes],
        *,
        mode: int | None = None,
        user: str | None = None,
        append: bool = False,
    ) -> int:
        """Write a file and return its count of bytes; whoever reads it meanwhile sees the old one or the new one.

        An existing file keeps its mode and, unless `user` is given, its owner; a new one has 0644. Missing folders
        are made. With `append` bytes are added in place. If `chunks` raises, nothing was written (but what was
        appended stays).
        """
        request = {"op": "write", "path": path, "mode": mode, "user": user, "append": append}
        async with self._call(request) as call:
            sent = 0
            async for chunk in chunks:
                if not await call.send(chunk):
                    break
                sent += len(chunk)
            call.end_input()
            if read(Moved, await call.result()).bytes != sent:
                raise OutcomeUnknown(f"the guest wrote another count of bytes to {path} than it was sent")
            return sent

    async def stat(self, path: str, *, user: str | None = None) -> FileEntry:
        """Describe a file, folder or link; a link is not followed."""
        return read(FileEntry, await self._ask({"op": "stat", "path": path, "user": user}))

    async def list(self, path: str, *, user: str | None = None) -> list[FileEntry]:
        """Describe what is in a folder, by name. Raises InvalidRequest for one too large to be held here."""
        listed: list[FileEntry] = []
        size = 0
        async with self._call({"op": "list", "path": path, "user": user}) as call:
            async for entry in entries_of(call):
                size += _ENTRY_BYTES + len(entry.name) + len(entry.path) + len(entry.link_target or "")
                if size > _MAX_LISTED_BYTES:
                    raise InvalidRequest(f"{path} holds too much to be listed at once", hint="walk it instead")
                listed.append(entry)
        return listed

    @asynccontextmanager
    async def walk(self, path: str, *, user: str | None = None) -> AsyncIterator[AsyncIterator[FileEntry]]:
        """Describe everything below a folder, each folder before what is in it, by name. Links are not followed.

        If the folder cannot be read the block is not entered.
        """
        async with self._call({"op": "walk", "path": path, "user": user}) as call:
            first = await call.receive()
            entries = entries_of(call, first)
            async with aclosing(entries):
                yield entries

    async def mkdir(self, path: str, *, mode: int | None = None, user: str | None = None) -> None:
        """Make a folder and its missing parents; one that is there already is success.

        Raises Conflict for a file there.
        """
        await self._ask({"op": "mkdir", "path": path, "mode": mode, "user": user})

    async def remove(self, path: str, *, recursive: bool = False, user: str | None = None) -> None:
        """Remove a file, link or folder. Raises Conflict for a folder that is not empty unless `recursive`."""
        await self._ask({"op": "remove", "path": path, "recursive": recursive, "user": user})

    async def rename(self, source: str, target: str, *, user: str | None = None) -> None:
        """Move `source` to `target`, replacing a file there."""
        await self._ask({"op": "rename", "source": source, "target": target, "user": user})

    async def _tell(self, request: dict[str, Any], timeout_s: float, *, counts_held: bool = True) -> dict[str, Any]:
        """Ask even if the line is held. Without `counts_held` no time runs out while it is.

        Raises Failed for whatever the guest refuses, OutcomeUnknown if it does not answer in time or the line is lost,
        InvalidRequest if the request is too long.
        """
        try:
            call = self._channel.call_now(request)
        except Unavailable as error:
            raise OutcomeUnknown(error.message) from error
        try:
            return await self._result_within(timeout_s, call, counts_held=counts_held)
        except OutcomeUnknown:
            raise
        except TorporError as error:
            raise Failed(error.message, hint=error.hint) from error
        finally:
            await call.aclose()

    async def _result_within(self, timeout_s: float, call: Call, *, counts_held: bool) -> dict[str, Any]:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    return await call.result()
            if counts_held or not self._channel.held:
                raise OutcomeUnknown(f"the guest's agent did not answer within {timeout_s:g} s")
            await self._channel.released()


def _is_now(wall_ns: int, began_ns: int) -> bool:
    """Tell whether a clock that was set to `began_ns`, when that was the time, can show `wall_ns` by now."""
    tolerance_ns = int(_CLOCK_TOLERANCE_S * 1e9)
    return began_ns - tolerance_ns <= wall_ns <= time.time_ns() + tolerance_ns
