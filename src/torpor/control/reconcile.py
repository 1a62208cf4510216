"""Compares what is recorded with what lives on the host, and mends the difference.

Level-triggered: it looks at how things stand, never at what happened, so it may run at any time and as often as it
likes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from enum import Enum
from typing import Any

import structlog

from torpor.control.service.plane import Plane
from torpor.errors import TorporError
from torpor.kit.race import Overtaken, race
from torpor.model.ids import SandboxId
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox
from torpor.wire.host import Incarnation

_log = structlog.get_logger("torpor.control")


class Verdict(Enum):
    """What a difference calls for."""

    NOTHING = "nothing"
    RUNS = "record that it runs"
    LOST = "record that its machine is gone"
    CLOSE = "close it on the host and record that it is deleted"
    STRAY = "close it on the host, where nobody owns it"


def decide(sandbox: Sandbox | None, found: Incarnation | None) -> Verdict:
    """Return what is to be done about a sandbox as recorded (None: not, or deleted) and as found on the host."""
    alive = found is not None and found.alive
    if sandbox is None or sandbox.state is State.DELETED:
        return Verdict.NOTHING if found is None else Verdict.STRAY
    match sandbox.state:
        case State.CREATING:
            # Not alive may also mean not yet: closing it makes the end definite before it is recorded.
            return Verdict.RUNS if alive else Verdict.CLOSE
        case State.DELETING:
            return Verdict.CLOSE
        case State.RUNNING:
            return Verdict.NOTHING if alive else Verdict.LOST
        case _:
            return Verdict.NOTHING


async def reconcile(plane: Plane) -> int:
    """Mend every difference there is now, and return how many there were.

    Sandboxes with a passage under way are left to it. What cannot be mended is logged and left for the next time.
    Raises HostUnreachable if the host cannot be asked.
    """
    recorded = {sandbox.id: sandbox for sandbox in await plane.store.living()}
    found = await plane.host.incarnations()
    differing = 0
    for sandbox_id in sorted({*recorded, *map(SandboxId, found)}):
        verdict = decide(recorded.get(sandbox_id), found.get(sandbox_id))
        if verdict is Verdict.NOTHING or plane.gate.is_busy(sandbox_id):
            continue
        differing += 1
        try:
            await reconcile_one(plane, sandbox_id)
        except TorporError as error:
            _log.warning("not mended", sandbox=sandbox_id, wanted=verdict.value, error=error.message)
    return differing


async def reconcile_one(plane: Plane, sandbox_id: SandboxId) -> None:
    """Mend one sandbox, after any passage of it that is under way. Raises what the host raises.

    Both sides are read here, with no passage under way, so that neither can be older than the other.
    """
    async with plane.gate.alone(sandbox_id):
        sandbox = await plane.store.get(sandbox_id)
        found = (await plane.host.incarnations()).get(sandbox_id)
        verdict = decide(sandbox, found)
        if verdict is not Verdict.NOTHING:
            recorded = sandbox.state.value if sandbox is not None else None
            alive = found is not None and found.alive
            _log.info("mending", sandbox=sandbox_id, recorded=recorded, alive=alive, verdict=verdict.value)
            await _mend(plane, sandbox_id, sandbox, found)


async def _mend(plane: Plane, sandbox_id: SandboxId, sandbox: Sandbox | None, found: Incarnation | None) -> None:
    verdict = decide(sandbox, found)
    if verdict in (Verdict.CLOSE, Verdict.STRAY):
        await plane.host.close(sandbox_id)
    if sandbox is None:
        return
    if verdict is Verdict.CLOSE:
        await plane.gate.correct(sandbox, State.DELETED)
    elif verdict is Verdict.LOST:
        reason = found.reason if found is not None else "its machine is not on the host any more"
        await plane.gate.correct(sandbox, State.FAILED, reason=reason or "its machine died")
    elif verdict is Verdict.RUNS and found is not None:
        await plane.gate.correct(
            sandbox,
            State.RUNNING,
            boot_ms=found.boot_ms,
            cpu=found.cpu,
            memory_mb=found.memory_mb,
            disk_gb=found.disk_gb,
        )


async def watch(plane: Plane, every_s: float) -> None:
    """Reconcile for ever: every `every_s` seconds, and at once when the `truth` bell rings. Ends by cancellation."""
    while True:
        await rung_or_slept(plane.bells.truth, plane.clock.sleep(every_s))
        try:
            await reconcile(plane)
        except TorporError as error:
            _log.warning("could not reconcile", error=error.message)


async def rung_or_slept(bell: asyncio.Event, sleep: Coroutine[Any, Any, None]) -> None:
    """Return when the bell rings or the sleep is over, whichever is first. The bell is quiet again after."""
    with suppress(Overtaken):
        await race(bell.wait(), sleep)
    bell.clear()
