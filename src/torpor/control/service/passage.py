"""The gate: the only code that changes a sandbox's state.

One conditional write leads into a passage, one out. A sandbox has at most one passage under way in this process;
whoever comes second waits for the first to end and then finds what it left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Unpack

import structlog

from torpor.control.store.contract import Boundary, Claim, Facts, Store
from torpor.errors import (
    Busy,
    Conflict,
    Failed,
    NotFound,
    OutcomeUnknown,
    Refused,
    SandboxLost,
    TorporError,
    Unavailable,
)
from torpor.kit import faultpoints
from torpor.kit.clock import Clock
from torpor.kit.locks import KeyedLocks
from torpor.kit.news import News
from torpor.kit.shielded import shielded
from torpor.model.ids import SandboxId
from torpor.model.lifecycle import CREATE, DELETE, Passage, State
from torpor.model.sandbox import Sandbox
from torpor.model.usage import Reading
from torpor.wire import host

_log = structlog.get_logger("torpor.control")

# Ways of being alive: where what the host found is right, whatever was recorded of a sandbox that has come to be.
_ALIVE = frozenset({State.RUNNING, State.PAUSED, State.HIBERNATED})
_CAME_TO_BE = frozenset(State) - {State.CREATING, State.DELETING, State.DELETED, State.FAILED}
# What the reconciler may correct.
_CORRECTIONS = {
    *((row.during, end) for row in (CREATE, DELETE) for end in (row.done, row.undone)),
    *((state, to) for state in _CAME_TO_BE for to in {*_ALIVE, State.FAILED} - {state}),
}
# The verb of corrections, in events.
_RECOVER = "recover"
# Only of these does a sandbox's `reason` speak.
_EXPLAINED = frozenset({State.FAILED, State.DELETED})


@dataclass(frozen=True, slots=True)
class Bells:
    """Signals to the tasks in the background.

    `expiry`: an end of life may have changed; `truth`: ask the host; `idleness`, `pace`: a sandbox may have begun to
    run, or wish for other care. `news`: an event was written, for whoever follows them. `queue`: a build may begin;
    `builds`: a build has come further, or its log has grown.
    """

    expiry: asyncio.Event = field(default_factory=asyncio.Event)
    truth: asyncio.Event = field(default_factory=asyncio.Event)
    idleness: asyncio.Event = field(default_factory=asyncio.Event)
    pace: asyncio.Event = field(default_factory=asyncio.Event)
    news: News = field(default_factory=News)
    queue: asyncio.Event = field(default_factory=asyncio.Event)
    builds: News = field(default_factory=News)

    def ring_settled(self) -> None:
        """Say that a sandbox has settled in another state."""
        for bell in (self.expiry, self.idleness, self.pace):
            bell.set()
        self.news.ring()


@dataclass(slots=True)
class Crossing:
    """A passage as the verb sees it. If it `holds`, the verb has nothing to do and `sandbox` is how things stand.

    `began` is the state it was found in (None: the passage is its creation). `reading` is what the sandbox had used by
    the end of the passage, where the host told the verb.
    """

    sandbox: Sandbox
    began: State | None = None
    holds: bool = False
    facts: Facts = field(default_factory=Facts)
    reading: Reading | None = None

    def learn(self, **facts: Unpack[Facts]) -> None:
        """Note what is to be recorded of the sandbox when the passage ends well."""
        self.facts.update(facts)


class Gate:
    """Lets one passage at a time through to each sandbox. See the module."""

    def __init__(self, store: Store, clock: Clock, bells: Bells) -> None:
        self._store = store
        self._clock = clock
        self._bells = bells
        self._turns = KeyedLocks[SandboxId]()

    @asynccontextmanager
    async def passage(
        self, sandbox_id: SandboxId, row: Passage, is_wanted: Callable[[Sandbox], bool] | None = None
    ) -> AsyncIterator[Crossing]:
        """Run the block as one passage of the table.

        `is_wanted` is asked right before it begins, with the record as it is then; if it is not, Conflict is raised.

        Settles in `done` when the block ends, in `undone` if it raises Refused, Unavailable or Failed. Anything else
        (OutcomeUnknown, cancellation, a bug) leaves the state of the passage, and the reconciler asks the host. A row
        that shows nothing leaves the state it began in until its end. Raises NotFound for one that is unknown
        or deleted, SandboxLost for a failed one that the verb cannot start from, and Conflict if its state is neither
        one to start in nor one in which the verb holds already.
        """
        async with self.alone(sandbox_id):
            sandbox = await self._store.get(sandbox_id)
            if sandbox is None:
                raise NotFound(f"there is no sandbox {sandbox_id}")
            if sandbox.state in row.holds:
                yield Crossing(sandbox, sandbox.state, holds=True)
                return
            if sandbox.state is State.DELETED:
                raise NotFound(f"there is no sandbox {sandbox_id}: it has been deleted")
            if sandbox.state not in row.starts:
                raise lost(sandbox) if sandbox.state is State.FAILED else refusal(sandbox, row.verb, row.starts)
            if is_wanted is not None and not is_wanted(sandbox):
                raise Conflict(
                    f"{row.verb} of sandbox {sandbox_id} is not called for any more", seen=sandbox.state.value
                )
            async with self._settling(await self._begun(sandbox, row), row) as crossing:
                yield crossing

    @asynccontextmanager
    async def creation(self, sandbox: Sandbox, claim: Claim | None) -> AsyncIterator[Crossing]:
        """Record a new sandbox and run the block as its passage into life.

        It `holds` if the claim belongs to an earlier sandbox. Raises Conflict as `Store.add` does; else as `passage`.
        """
        async with self.alone(sandbox.id):
            recorded = await self._store.add(sandbox, claim)
            if recorded.id != sandbox.id:
                yield Crossing(recorded, holds=True)
                return
            self._shown()
            async with self._settling(Crossing(recorded), CREATE) as crossing:
                yield crossing

    def alone(self, sandbox_id: SandboxId) -> AbstractAsyncContextManager[None]:
        """Run the block while no passage of the sandbox is under way; waits for the one that is."""
        return self._turns.hold(sandbox_id)

    def is_busy(self, sandbox_id: SandboxId) -> bool:
        """Tell whether a passage of the sandbox is under way."""
        return sandbox_id in self._turns

    async def correct(
        self,
        sandbox: Sandbox,
        to: State,
        *,
        since: datetime | None = None,
        reading: Reading | None = None,
        **facts: Unpack[Facts],
    ) -> None:
        """Record what the host said about a sandbox, inside `alone`; does nothing if its state has changed.

        `since` is when that came to be, if it can be known, and `reading` what the sandbox had used by then. When a
        machine was lost nobody knows: the ledger says that it was at the last heartbeat, and so never too late.
        """
        if (sandbox.state, to) not in _CORRECTIONS:
            raise ValueError(f"no passage leads from {sandbox.state} to {to}")
        boundary = Boundary(_RECOVER, reading, sandbox.created_at if to is State.FAILED else since)
        told = _told(to, facts)
        moved = await shielded(self._store.move(sandbox.id, {sandbox.state}, to, self._clock.now(), told, boundary))
        if moved is not None:
            _log.info("corrected", sandbox=sandbox.id, seen=sandbox.state.value, now=to.value, reason=moved.reason)
            self._bells.ring_settled()

    async def _begun(self, sandbox: Sandbox, row: Passage) -> Crossing:
        if row.during is None:
            return Crossing(sandbox, sandbox.state)
        boundary = Boundary(row.verb)
        shown = await self._store.move(sandbox.id, {sandbox.state}, row.during, self._clock.now(), boundary=boundary)
        if shown is None:  # another server on the same records
            raise Busy(f"sandbox {sandbox.id} changed while {row.verb} was about to begin")
        self._shown()
        return Crossing(shown, sandbox.state)

    def _shown(self) -> None:
        self._bells.news.ring()
        faultpoints.reached("passage.begun")

    @asynccontextmanager
    async def _settling(self, crossing: Crossing, row: Passage) -> AsyncIterator[Crossing]:
        try:
            yield crossing
            faultpoints.reached("passage.answered")
        except (Refused, Unavailable, Failed) as error:
            await self._settle(crossing, row, row.undone, Facts(reason=f"{row.verb}: {error.message}"))
            raise
        except BaseException:
            self._bells.truth.set()
            raise
        crossing.sandbox = await self._settle(crossing, row, row.done, crossing.facts)

    async def _settle(self, crossing: Crossing, row: Passage, end: State | None, facts: Facts) -> Sandbox:
        sandbox = crossing.sandbox
        to = end or crossing.began
        if to is None:
            raise ValueError(f"{row.verb} has no state to end in")
        if sandbox.state is to:  # nothing was shown, and nothing came of it
            return sandbox
        # Back in a state it was in before, it has the reason that it had there.
        told = _without_reason(facts) if to is crossing.began else _told(to, facts)
        boundary = Boundary(row.verb, crossing.reading)
        try:
            settled = await shielded(
                self._store.move(sandbox.id, {sandbox.state}, to, self._clock.now(), told, boundary)
            )
        except TorporError as error:
            self._bells.truth.set()
            message = f"{row.verb} of sandbox {sandbox.id} ended, but could not be recorded"
            raise OutcomeUnknown(message) from error
        if settled is None:
            raise OutcomeUnknown(f"sandbox {sandbox.id} changed while its {row.verb} was under way")
        faultpoints.reached("passage.settled")
        self._bells.ring_settled()
        return settled


def reading_of(usage: host.Usage | None) -> Reading | None:
    """Return what a host told of a sandbox's usage, None if it told nothing."""
    return None if usage is None else Reading(**usage.model_dump())


def facts_of(born: host.Incarnation) -> Facts:
    """Return what is to be recorded of a machine that came to life."""
    return Facts(
        boot_ms=born.boot_ms,
        cpu=born.cpu,
        memory_mb=born.memory_mb,
        disk_gb=born.disk_gb,
        guest_ip=born.guest_ip,
    )


def _told(to: State, facts: Facts) -> Facts:
    """Return what is recorded beside the new state: a reason only where it explains something."""
    return facts if to in _EXPLAINED else Facts(**{**facts, "reason": None})


def _without_reason(facts: Facts) -> Facts:
    kept = facts.copy()
    kept.pop("reason", None)
    return kept


# What lets a sandbox that rests do more.
_FIRST = {State.HIBERNATED: "wake it first", State.PAUSED: "resume it first"}


def lost(sandbox: Sandbox) -> SandboxLost:
    """Return the error for using a sandbox whose machine is gone."""
    last = sandbox.last_snapshot
    hint = "no snapshot of it exists; delete it and create another"
    if last is not None:
        hint = f"roll it back to its last snapshot {last}, or restore that as a new sandbox"
    reason = sandbox.reason or "its machine is gone"
    return SandboxLost(f"sandbox {sandbox.id} is lost: {reason}", last_snapshot=last, hint=hint)


def refusal(sandbox: Sandbox, verb: str, needed: frozenset[State]) -> Conflict:
    """Return the Conflict that says which state was seen and which are needed."""
    states = sorted(state.value for state in needed)
    message = f"{verb} needs sandbox {sandbox.id} to be {' or '.join(states)}, and it is {sandbox.state.value}"
    return Conflict(message, seen=sandbox.state.value, needed=states, hint=_FIRST.get(sandbox.state))
