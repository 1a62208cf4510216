"""Deadlines: the host is told when each machine ends, for the time when neither it nor we live to end it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import structlog

from torpor.control.hosts import HostClient
from torpor.control.store.contract import Store
from torpor.errors import NotFound, SandboxLost, TorporError
from torpor.kit.clock import Clock
from torpor.kit.locks import KeyedLocks
from torpor.kit.race import Overtaken, race
from torpor.model.ids import SandboxId
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox

_log = structlog.get_logger("torpor.control")

# A host that does not answer within this, in seconds, is told again later.
_PATIENCE_S = 10.0
# Where there is nothing on the host that could have a deadline.
_NOTHING_THERE = frozenset({State.DELETING, State.DELETED, State.FAILED})


class Deadlines:
    """Which sandboxes' ends the host has not been told yet. What cannot be told now is told later by `work`."""

    def __init__(self, store: Store, host: HostClient, clock: Clock) -> None:
        self._store = store
        self._host = host
        self._clock = clock
        # Each with the number of the newest reason to tell it: who tells of an older one has not told of that.
        self._untold: dict[SandboxId, int] = {}
        self._numbers = itertools.count()
        self._turns = KeyedLocks[SandboxId]()

    def doubt(self, sandboxes: Iterable[Sandbox]) -> None:
        """Have the host told of these again: nobody knows what it was told last."""
        self._untold.update((sandbox.id, next(self._numbers)) for sandbox in sandboxes)

    async def tell(self, sandbox_id: SandboxId) -> None:
        """Tell the host when a sandbox ends. Does not fail, nor take long: what did not reach it is told later."""
        self._untold[sandbox_id] = next(self._numbers)
        await self._told(sandbox_id)

    async def work(self, every_s: float) -> None:
        """Tell the host every `every_s` seconds what it has not been told yet, for ever. Ends by cancellation."""
        while True:
            await self._clock.sleep(every_s)
            for sandbox_id in sorted(self._untold):
                await self._told(sandbox_id)

    async def _told(self, sandbox_id: SandboxId) -> None:
        try:
            await race(self._in_turn(sandbox_id), self._clock.sleep(_PATIENCE_S))
        except Overtaken:
            _log.warning("deadline not told", sandbox=sandbox_id, error=f"no answer within {_PATIENCE_S:.0f} s")
        except TorporError as error:
            _log.warning("deadline not told", sandbox=sandbox_id, error=error.message)

    async def _in_turn(self, sandbox_id: SandboxId) -> None:
        async with self._turns.hold(sandbox_id):
            number = self._untold.get(sandbox_id)
            if await self._tell(sandbox_id) and self._untold.get(sandbox_id) == number:
                self._untold.pop(sandbox_id, None)

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
