"""What is done to a sandbox as a whole: it sleeps, wakes, is copied, goes back, and ends."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, overload

from torpor.errors import NotFound
from torpor.sdk._async.client import AsyncClient
from torpor.sdk._async.snapshot import AsyncSnapshot
from torpor.sdk.descent import Snapshots
from torpor.sdk.http import FREEZE_SILENCE_S, Call, changing, making
from torpor.sdk.orders import (
    Forking,
    Identified,
    Reachable,
    hibernating,
    new_idle_time,
    new_ttl,
    reaching,
    rolling_back,
    taking,
    waking,
)
from torpor.sdk.results import NetworkInfo, SandboxInfo
from torpor.sdk.waiting import Answering, Entering, async_enterable
from torpor.wire.public import Forked, Lifecycle, SandboxView, SnapshotView, Status
from torpor.wire.reach import NetworkView


class AsyncLife:
    """One sandbox's life. What a call here makes of the sandbox can be seen in `info` and `state` afterwards."""

    def __init__(self, client: AsyncClient, info: SandboxInfo) -> None:
        self._client = client
        self._info = info
        # A block of `thinking` learns beside its caller.
        self._learning = threading.Lock()
        self._path = f"/sandboxes/{info.id}"

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

    async def hibernate(self, *, if_unused: bool = False) -> SandboxInfo:
        """Freeze it to disk, whole and in mid-instruction, and end its machine, which then costs no CPU and no memory.

        `wake` brings it back, and so does any command or file access. Commands in flight go on after it, and who waits
        for them goes on waiting. If it hibernates already, nothing happens. With `if_unused` it is left alone, with a
        Conflict, while any call is using it, such as an `exec`; what was started and nobody waits for does not count.

        Raises FreezeFailed or OutOfSpace (it is as before), Conflict, SandboxLost.
        """
        told = await self._client.fetch_as(Status, changing(f"{self._path}/hibernate", hibernating(if_unused)))
        asleep_in = {} if told.snapshot_id is None else {"last_snapshot_id": told.snapshot_id}
        return self._learn(state=told.status, **asleep_in)

    async def wake(self, ttl_seconds: int | None = None) -> SandboxInfo:
        """Bring it back from hibernation, exactly where it left off; if it runs, nothing happens.

        Its ttl went on meanwhile and is kept, unless `ttl_seconds` gives it a new one, counted from the waking.

        Raises RestoreFailed, SnapshotCorrupt or NoCapacity (it hibernates on), Conflict, SandboxLost.
        """
        order = b"" if ttl_seconds is None else waking(ttl_seconds)
        told = await self._client.fetch_as(Status, changing(f"{self._path}/wake", order))
        return self._learn(state=told.status) if ttl_seconds is None else await self.refresh()

    async def pause(self) -> SandboxInfo:
        """Let its processors stand still; its memory stays where it is. If they do already, nothing happens."""
        await self._client.fetch(changing(f"{self._path}/pause"))
        return self._learn(state="paused")

    async def resume(self) -> SandboxInfo:
        """Let it go on after `pause`. If it runs, nothing happens. A sandbox that hibernates needs `wake`."""
        await self._client.fetch(changing(f"{self._path}/resume"))
        return self._learn(state="running")

    async def snapshot(self, name: str | None = None) -> AsyncSnapshot:
        """Take a checkpoint of its memory and disk in one instant, and return it when it is durable.

        The sandbox stands still for the copy of what it has written in memory, and runs on while that is made durable.
        `name` is for people and need not be unique. One whose answer was lost is asked for again under the same key,
        and is taken once.

        Raises FreezeFailed or OutOfSpace (the sandbox runs on, no snapshot is left), Conflict, SandboxLost.
        """
        call = making(f"{self._path}/snapshots", taking(name), FREEZE_SILENCE_S)
        taken = AsyncSnapshot.of(await self._client.fetch_as(SnapshotView, call), self._client)
        self._learn(last_snapshot_id=taken.id)
        return taken

    async def snapshots(self) -> Snapshots[AsyncSnapshot]:
        """Return all its snapshots, newest first; those of hibernations and forks, and automatic ones too.

        The list prints as a tree: what was taken after what.
        """
        return Snapshots([snapshot async for snapshot in AsyncSnapshot.iterate(self.id, client=self._client)])

    async def rollback(self, snapshot: Identified | str) -> SandboxInfo:
        """Make it again what it was in a snapshot (or the id of one), under its own id, and let it run.

        The snapshot is one of its own or the one it was made from; `restore` takes any. What happened in it since then
        is lost, and commands in flight end with an error. Its ttl, name and metadata stay. A sandbox whose machine died
        is brought back by it too.

        Raises NotFound, Conflict (another sandbox's snapshot is one), SnapshotCorrupt, RestoreFailed, NoCapacity.
        """
        call = changing(f"{self._path}/rollback", rolling_back(snapshot))
        self._info = SandboxInfo.of(await self._client.fetch_as(SandboxView, call))
        return self._info

    @overload
    def fork(
        self,
        count: None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        ttl_seconds: int | None = None,
        persistent: bool = False,
        secrets: Mapping[str, str] | None = None,
        network: Reachable | None = None,
    ) -> Entering[Self]:
        """Make one copy and return it."""

    @overload
    def fork(
        self,
        count: int,
        *,
        metadata: Mapping[str, str] | None = None,
        ttl_seconds: int | None = None,
        persistent: bool = False,
        secrets: Mapping[str, str] | None = None,
        network: Reachable | None = None,
    ) -> Answering[list[Self]]:
        """Make `count` copies and return them."""

    def fork(
        self,
        count: int | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        ttl_seconds: int | None = None,
        persistent: bool = False,
        secrets: Mapping[str, str] | None = None,
        network: Reachable | None = None,
    ) -> Entering[Self] | Answering[list[Self]]:
        """Make copies of it that start from its exact state and then go their own ways, each with its own identity.

        Without `count` one copy is made and returned; with `count` a list of so many, 1 too. All begin in one instant.
        It may run, be paused or hibernate, and stands still only for the copy. The children have its metadata and
        `metadata` over that, and live for `ttl_seconds` from then (its own ttl unless given; without an end if
        `persistent`). They hold its secrets, or `secrets` in place of all of them before anything runs in them, and may
        reach what it may, or what `network` says, as in `create`. One copy can be entered as a block, which deletes it
        at its end, as with `create`. A fork whose answer was lost is tried again under the same key, and forks once.

        Raises FreezeFailed, OutOfSpace, RestoreFailed or NoCapacity (no child is left), Conflict, SandboxLost.
        """
        wish = Forking(metadata, ttl_seconds, persistent, secrets, network)
        return self._fork_one(wish) if count is None else self._fork_many(count, wish)

    async def refresh(self) -> SandboxInfo:
        """Ask the server for its present state and return it."""
        self._info = SandboxInfo.of(await self._client.fetch_as(SandboxView, Call("GET", self._path)))
        return self._info

    async def set_ttl(self, seconds: int | None) -> SandboxInfo:
        """Let it end `seconds` from now, whatever its ttl was; with None it is persistent, and has no end.

        Raises InvalidRequest for less than a second.
        """
        return await self._change_life(new_ttl(seconds))

    async def set_idle(self, seconds: int | None) -> SandboxInfo:
        """Let `on_idle` be done to it after `seconds` with nothing in flight; with None idleness changes nothing.

        Raises InvalidRequest for less than a second.
        """
        return await self._change_life(new_idle_time(seconds))

    async def network(self) -> NetworkInfo:
        """Return what it may reach, its own address, and what it tried to reach and could not. It is not woken."""
        return NetworkInfo.of(await self._client.fetch_as(NetworkView, Call("GET", f"{self._path}/network")))

    async def set_network(self, network: Reachable) -> NetworkInfo:
        """Set what it may reach: "internet", "none", or a list of host names and IPv4 networks, as in `create`.

        It is so at once, and ends connections that are not allowed any more; a sandbox that hibernates is not woken.

        Raises InvalidRequest, Unsupported where the server has no network for sandboxes, SandboxLost.
        """
        call = Call("PATCH", f"{self._path}/network", content=reaching(network))
        told = NetworkInfo.of(await self._client.fetch_as(NetworkView, call))
        self._learn(network=told.network, guest_ip=told.guest_ip)
        return told

    async def delete(self) -> None:
        """End it and forget everything in it. Deleting it again does nothing."""
        # Where nobody knows it any more, what was asked for holds.
        with contextlib.suppress(NotFound):
            await self._client.fetch(Call("DELETE", self._path))
        self._learn(state="deleted")

    async def kill(self) -> None:
        """The same as `delete`."""
        await self.delete()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._info.persistent:
            await self.delete()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} template={self.template} state={self.state}>"

    @async_enterable
    async def _fork_one(self, wish: Forking) -> Self:
        forked = await self._forked(wish.body(None))
        return self._child(forked.sandbox)

    async def _fork_many(self, count: int, wish: Forking) -> list[Self]:
        forked = await self._forked(wish.body(count))
        return [self._child(view) for view in forked.children]

    async def _forked(self, order: bytes) -> Forked:
        return await self._client.fetch_as(Forked, making(f"{self._path}/fork", order, FREEZE_SILENCE_S))

    async def _change_life(self, change: bytes) -> SandboxInfo:
        told = await self._client.fetch_as(Lifecycle, Call("PATCH", f"{self._path}/lifecycle", content=change))
        return self._learn(
            ttl_seconds=told.ttl_seconds,
            expires_at=told.expires_at,
            persistent=told.persistent,
            idle_timeout_seconds=told.idle_seconds,
        )

    def _child(self, view: SandboxView) -> Self:
        return type(self)(self._client, SandboxInfo.of(view))

    def _learn(self, **facts: Any) -> SandboxInfo:
        with self._learning:
            if self._info.state == "deleted":  # an answer that was under way when it was deleted tells of before
                facts["state"] = "deleted"
            self._info = dataclasses.replace(self._info, **facts)
            return self._info
