"""Activity: which sandboxes are in use at this moment, and since when the others are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from torpor.kit.clock import Clock
from torpor.model.ids import SandboxId, WorkspaceId


@dataclass(slots=True)
class _Use:
    """The calls in flight, and the moment (monotonic) since which there are none, where there are none."""

    unused_since: float
    in_flight: int = 0


class Activity:
    """Counts the calls that use each sandbox. It lives in memory: after a start, every sandbox begins to be idle anew.

    Between a call and a sweep the call wins. A sweep begins only while nothing is in flight, which is found and marked
    without a pause in between; a call that comes during it waits for its end, and then deals with what it left.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._uses: dict[SandboxId, _Use] = {}
        self._sweeps: dict[SandboxId, asyncio.Event] = {}
        self._owners: dict[SandboxId, WorkspaceId] = {}

    @asynccontextmanager
    async def using(self, sandbox_id: SandboxId) -> AsyncIterator[None]:
        """Count a call as in flight while the block runs. May be nested."""
        await self.wait_swept(sandbox_id)
        # No await from here to the count: a sweep that begins later sees it.
        use = self._use(sandbox_id)
        use.in_flight += 1
        try:
            yield
        finally:
            use.in_flight -= 1
            use.unused_since = self._clock.monotonic()

    async def wait_swept(self, sandbox_id: SandboxId) -> None:
        """Wait for the end of a sweep that is under way. There is no other when this returns, until the next await."""
        while (sweep := self._sweeps.get(sandbox_id)) is not None:
            await sweep.wait()

    def touch(self, sandbox_id: SandboxId) -> None:
        """Let a sandbox's idle time begin anew."""
        self._use(sandbox_id).unused_since = self._clock.monotonic()

    def is_known(self, sandbox_id: SandboxId) -> bool:
        """Tell whether anything is known of a sandbox."""
        return sandbox_id in self._uses

    def note_owner(self, sandbox_id: SandboxId, workspace: WorkspaceId) -> None:
        """Take in whose a sandbox is, which never changes."""
        self._owners[sandbox_id] = workspace

    def is_owned(self, sandbox_id: SandboxId, workspace: WorkspaceId) -> bool:
        """Tell whether a sandbox is known to be a workspace's."""
        return self._owners.get(sandbox_id) == workspace

    def in_flight(self, sandbox_id: SandboxId) -> int:
        """Return how many calls are using a sandbox."""
        use = self._uses.get(sandbox_id)
        return 0 if use is None else use.in_flight

    def idle_s(self, sandbox_id: SandboxId) -> float:
        """Return for how long nothing has used a sandbox, in seconds; of one never heard of, it begins now."""
        use = self._use(sandbox_id)
        return 0.0 if use.in_flight else self._clock.monotonic() - use.unused_since

    @contextmanager
    def sweeping(self, sandbox_id: SandboxId, after_s: float = 0.0) -> Iterator[bool]:
        """Yield whether nothing uses a sandbox, nor has for `after_s` seconds; then calls wait until the block ends."""
        if sandbox_id in self._sweeps or self.in_flight(sandbox_id) or self.idle_s(sandbox_id) < after_s:
            yield False
            return
        over = self._sweeps[sandbox_id] = asyncio.Event()
        try:
            yield True
        finally:
            del self._sweeps[sandbox_id]
            over.set()

    def forget_others(self, living: Container[SandboxId]) -> None:
        """Drop what is known of unused sandboxes that are not among the living."""
        gone = [one for one, use in self._uses.items() if not use.in_flight and one not in living]
        for one in gone:
            del self._uses[one]
        for one in [one for one in self._owners if one not in self._uses and one not in living]:
            del self._owners[one]

    def _use(self, sandbox_id: SandboxId) -> _Use:
        use = self._uses.get(sandbox_id)
        if use is None:
            use = self._uses[sandbox_id] = _Use(self._clock.monotonic())
        return use
