"""restore: what is frozen, brought to life as a running incarnation. One of the two hard operations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Literal

import structlog

from torpor.errors import TorporError
from torpor.guest.client import Guest
from torpor.host.live import Incarnation
from torpor.host.prepared import Prepared
from torpor.kit.owning import own
from torpor.kit.shielded import wait_ended
from torpor.model.identity import Identity
from torpor.model.ids import SandboxId

_log = structlog.get_logger(__name__)
# The guest bounds each hook; this is for a guest that does not.
_HOOKS_S = 70.0

Event = Literal["wake", "fork"]


@dataclass(frozen=True, slots=True)
class Birth:
    """What a frozen guest becomes: who it is, what is added to its environment, and what its hooks are told it was.

    `confirm` is called when the guest has acknowledged all of it and its processes stand still yet; `settle` runs in a
    thread meanwhile they are let go, and has to be done before anybody hears that the sandbox lives.
    """

    identity: Identity
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # users put secrets there
    event: Event | None = None
    confirm: Callable[[], None] = lambda: None
    settle: Callable[[], None] = lambda: None


async def restore(opening: Awaitable[Prepared], birth: Birth) -> Incarnation:
    """Bring a prepared guest to life under an identity. If any step fails, what was opened is closed, last first.

    Raises RestoreFailed, InvalidRequest for an environment that is too long, and what preparing raises.
    """
    started = time.monotonic()
    identity, event = birth.identity, birth.event
    async with AsyncExitStack() as undo:
        prepared = await own(undo, opening)  # a guest that answers, and whose processes stand still
        guest, has_processes = prepared.guest, prepared.base.snapshot is not None
        # Entropy, clock, names; acknowledged, else the restore fails.
        hooks = await guest.adopt(identity, env=birth.env, thaw=not has_processes, event=event)
        birth.confirm()
        if has_processes:
            await _let_go(guest, birth.settle)
        guest.release()
        if hooks and event is not None:
            await _run_hooks(guest, identity.sandbox_id, event)
        undo.pop_all()
    boot_ms = round((time.monotonic() - started) * 1000)
    return Incarnation(identity.sandbox_id, prepared.base, prepared.place, prepared.machine, guest, boot_ms=boot_ms)


async def _let_go(guest: Guest, settle: Callable[[], None]) -> None:
    """Let the guest's processes go on, and meanwhile make durable that they do."""
    settling = asyncio.create_task(asyncio.to_thread(settle))
    try:
        await guest.thaw()
    finally:
        await wait_ended(settling)
    settling.result()


async def _run_hooks(guest: Guest, sandbox: SandboxId, event: Event) -> None:
    """Run the guest's own hooks. What fails in them is the guest's: its console tells of it."""
    try:
        async with asyncio.timeout(_HOOKS_S):
            failed = await guest.run_hooks(event)
    except (TorporError, TimeoutError) as error:
        _log.warning("hooks did not run to their end", sandbox=sandbox, hooks=event, error=str(error))
    else:
        _log.info("hooks ran", sandbox=sandbox, hooks=event, failed=failed)
