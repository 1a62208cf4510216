"""Deadlines: the host is told when each machine ends, for the time when neither it nor we live to end it."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from torpor.control.hosts import HostClient
from torpor.control.store.contract import Store
from torpor.errors import NotFound, SandboxLost, TorporError
from torpor.kit.locks import KeyedLocks
from torpor.model.ids import SandboxId
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox

_log = structlog.get_logger("torpor.control")

# Where there is nothing on the host that could have a deadline.
_NOTHING_THERE = frozenset({State.DELETING, State.DELETED, State.FAILED})


class Deadlines:
    """Which sandboxes' ends the host has not been told yet. What cannot be told now is told by the watcher."""

    def __init__(self, store: Store, host: HostClient) -> None:
        self._store = store
        self._host = host
        self._untold: set[SandboxId] = set()
        self._turns = KeyedLocks[SandboxId]()

    def doubt(self, sandboxes: Iterable[Sandbox]) -> None:
        """Have the host told of these again: nobody knows what it was told last."""
        self._untold.update(sandbox.id for sandbox in sandboxes)

    async def tell(self, sandbox_id: SandboxId) -> None:
        """Tell the host when a sandbox ends. Does not fail: what did not reach it is told later."""
        self._untold.add(sandbox_id)
        async with self._turns.hold(sandbox_id):
            try:
                if await self._tell(sandbox_id):
                    self._untold.discard(sandbox_id)
            except TorporError as error:
                _log.warning("deadline not told", sandbox=sandbox_id, error=error.message)

    async def tell_untold(self) -> None:
        """Tell the host what it has not been told yet."""
        for sandbox_id in sorted(self._untold):
            await self.tell(sandbox_id)

    async def _tell(self, sandbox_id: SandboxId) -> bool:
        """Tell it, and return whether it, or nothing any more, is known to the host."""
        # Read inside the turn, so that whoever tells last tells what was recorded last.
        sandbox = await self._store.get(sandbox_id)
        if sandbox is None or sandbox.state in _NOTHING_THERE:
            return True
        if sandbox.state is State.CREATING:  # the order that is under way may have an older end in it
            return False
        try:
            await self._host.set_deadline(sandbox_id, deadline_of(sandbox))
        except (NotFound, SandboxLost):  # what became of it is for the reconciler to find out
            return True
        return True


def deadline_of(sandbox: Sandbox) -> float | None:
    """Return the end of a sandbox as the host takes it: in seconds since 1970, None for never."""
    return None if sandbox.expires_at is None else sandbox.expires_at.timestamp()
