"""The host's side of a guest's agent: what can be asked of one running guest, in terms of the wire models.

Every method raises what `torpor.guest.channel` says, and `OutcomeUnknown` where the guest answers something that
makes no sense. Each may be cancelled at any time; the guest then stops what it was doing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import re
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from torpor.errors import InvalidRequest, OutcomeUnknown, RestoreFailed, TorporError
from torpor.guest.channel import Call, Channel
from torpor.kit.shielded import wait_ended
from torpor.model.identity import Identity
from torpor.wire.frames import Frame, Kind
from torpor.wire.host import ExecOrder, ExecOutcome
from torpor.wire.public import FileEntry
from torpor_guest import protocol

_ENTROPY_BYTES = 64
# The guest's wall clock after it was set may differ from ours by this and the time the call took, in seconds.
_CLOCK_TOLERANCE_S = 1.0
_ADOPT_S = 30.0
# A line of a listing: a name and two paths at their longest, escaped.
_MAX_LINE = 256 * 1024
# A listing as a whole, by about what its entries take as JSON: some 100 000 entries with names of usual length.
_ENTRY_BYTES = 200
_MAX_LISTED_BYTES = 32 * 1024 * 1024
_SIGNAL = re.compile(r"SIG[A-Z0-9]{1,12}")
_MOST_CODE = 255
_KINDS = {protocol.OUTPUT: Kind.STDOUT, protocol.ERRORS: Kind.STDERR}
_Model = TypeVar("_Model", bound=BaseModel)


class _Adopted(BaseModel):
    model_config = ConfigDict(strict=True)
    sandbox_id: str
    hostname: str
    generation: int
    wall_ns: int


class _Moved(BaseModel):
    model_config = ConfigDict(strict=True)
    bytes: int = Field(ge=0)


async def connect(sock: socket.socket, *, timeout_s: float) -> Guest:
    """Return the guest behind a connected unix stream socket, which belongs to it from now on.

    Raises RestoreFailed, with nothing left open, if its agent does not answer in time or speaks another protocol
    version.
    """
    return Guest(await Channel.open(sock, timeout_s=timeout_s))


class Guest:
    """One running guest. Methods may be called at the same time; `aclose` ends the line, not the guest."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

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

    async def adopt(self, identity: Identity) -> None:
        """Give the guest its identity, the time and fresh entropy.

        Raises RestoreFailed unless it has confirmed all of it.
        """
        began_ns = time.time_ns()
        request = {
            "op": "adopt",
            "sandbox_id": identity.sandbox_id,
            "hostname": identity.hostname,
            "entropy": base64.b64encode(os.urandom(_ENTROPY_BYTES)).decode(),
            "wall_ns": began_ns,
            "generation": began_ns,
        }
        try:
            async with asyncio.timeout(_ADOPT_S):
                adopted = _read(_Adopted, await self._ask(request))
        except (TorporError, TimeoutError) as error:
            raise RestoreFailed(f"the guest did not take its new identity: {error or 'no answer'}") from error
        if (adopted.sandbox_id, adopted.hostname) != (identity.sandbox_id, identity.hostname):
            raise RestoreFailed("the guest confirmed another identity than the one it was given")
        latest_ns = time.time_ns() + _CLOCK_TOLERANCE_S * 1e9
        if not began_ns - _CLOCK_TOLERANCE_S * 1e9 <= adopted.wall_ns <= latest_ns:
            raise RestoreFailed("the guest's clock is wrong after it was set")

    async def quiesce(self, *, timeout_s: float) -> None:
        """Stop everything of the user's and write the guest's disks.

        Raises Failed, and everything runs on, if not in time.
        """
        await self._ask({"op": "quiesce", "timeout_s": timeout_s})

    async def unquiesce(self) -> None:
        """Let everything of the user's run on."""
        await self._ask({"op": "unquiesce"})

    async def ping(self) -> None:
        """Return when the agent has answered."""
        await self._ask({"op": "ping"})

    async def run(self, order: ExecOrder) -> ExecOutcome:
        """Run a command to its end and return how it ended; what it writes is dropped. Raises as `exec` does."""
        async with self.exec(order) as frames:
            async for kind, payload in frames:
                if kind is Kind.EXIT:
                    return ExecOutcome.model_validate_json(payload)
        raise OutcomeUnknown("the guest's agent did not say how the command ended")

    @asynccontextmanager
    async def exec(self, order: ExecOrder) -> AsyncIterator[AsyncIterator[Frame]]:
        """Run a command: yields its frames, STDOUT and STDERR as they come and last one EXIT with an ExecOutcome.

        Leaving the block before EXIT kills the command with all its children, and waits (for a bounded time) until it
        is gone.
        """
        data = _stdin_of(order)
        request = {
            "op": "exec",
            "argv": order.argv,
            "env": order.env,
            "cwd": order.cwd,
            "user": order.user,
            "timeout_s": order.timeout_s,
            "stdin": bool(data),
        }
        async with self._call(request) as call:
            feeder = asyncio.create_task(_feed(call, data)) if data else None
            frames = _frames_of(call)
            try:
                yield frames
            finally:
                await frames.aclose()
                if feeder is not None:
                    feeder.cancel()
                    await wait_ended(feeder)

    @asynccontextmanager
    async def read(self, path: str, *, user: str | None = None) -> AsyncIterator[AsyncIterator[bytes]]:
        """Read a file: yields its bytes in pieces. If it cannot be read the block is not entered."""
        async with self._call({"op": "read", "path": path, "user": user}) as call:
            first = await call.receive()
            chunks = _chunks_of(call, first)
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
            if _read(_Moved, await call.result()).bytes != sent:
                raise OutcomeUnknown(f"the guest wrote another count of bytes to {path} than it was sent")
            return sent

    async def stat(self, path: str, *, user: str | None = None) -> FileEntry:
        """Describe a file, folder or link; a link is not followed."""
        return _read(FileEntry, await self._ask({"op": "stat", "path": path, "user": user}))

    async def list(self, path: str, *, user: str | None = None) -> list[FileEntry]:
        """Describe what is in a folder, by name. Raises InvalidRequest for one too large to be held here."""
        listed: list[FileEntry] = []
        size = 0
        async with self._call({"op": "list", "path": path, "user": user}) as call:
            async for entry in _entries_of(call):
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
            entries = _entries_of(call, first)
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

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        async with self._call(request) as call:
            return await call.result()

    @asynccontextmanager
    async def _call(self, request: dict[str, Any]) -> AsyncIterator[Call]:
        call = self._channel.call(request)
        try:
            yield call
        finally:
            await call.aclose()


def _stdin_of(order: ExecOrder) -> bytes:
    try:
        return base64.b64decode(order.stdin or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest("stdin is not base64") from error


async def _feed(call: Call, data: bytes) -> None:
    """Send a command its input; one that ends without reading it is no error."""
    if await call.send(data):
        call.end_input()


async def _frames_of(call: Call) -> AsyncGenerator[Frame, None]:
    while (item := await call.receive()) is not None:
        yield Frame(_KINDS[item[0]], item[1])
    outcome = _read(ExecOutcome, await call.result())
    named = outcome.signal is None or _SIGNAL.fullmatch(outcome.signal) is not None
    if not (0 <= outcome.exit_code <= _MOST_CODE and outcome.duration_ms >= 0 and named):
        raise OutcomeUnknown("the guest's agent told of an end that no command can have")
    yield Frame(Kind.EXIT, outcome.model_dump_json().encode())


async def _chunks_of(call: Call, item: tuple[int, bytes] | None) -> AsyncGenerator[bytes, None]:
    """Yield what a file holds, `item` first, and check that nothing is missing."""
    received = 0
    while item is not None:
        received += len(item[1])
        yield item[1]
        item = await call.receive()
    if _read(_Moved, await call.result()).bytes != received:
        raise OutcomeUnknown("the guest sent another count of bytes than it says")


async def _entries_of(call: Call, item: tuple[int, bytes] | None = None) -> AsyncGenerator[FileEntry, None]:
    held = b""
    item = item or await call.receive()
    while item is not None:
        *lines, held = (held + item[1]).split(b"\n")
        for line in lines:
            yield _read(FileEntry, line)
        if len(held) > _MAX_LINE:
            raise OutcomeUnknown("the guest's agent sent an entry that is too long")
        item = await call.receive()
    if held:
        raise OutcomeUnknown("the guest's agent broke off in the middle of an entry")


def _read(model: type[_Model], value: dict[str, Any] | bytes) -> _Model:
    try:
        if isinstance(value, bytes):
            return model.model_validate_json(value, strict=True)
        return model.model_validate(value, strict=True)
    except ValidationError as error:
        raise OutcomeUnknown("the guest's agent gave an answer that makes no sense") from error
