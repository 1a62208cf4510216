"""restore: what is frozen, brought to life as a running incarnation. One of the two hard operations."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Literal

import structlog

from torpor.errors import Failed, RestoreFailed, TorporError
from torpor.guest.client import Guest
from torpor.host.live import Incarnation, put_on_record
from torpor.host.meter import Meter
from torpor.host.network_notes import write_egress
from torpor.host.prepared import Prepared
from torpor.host.record import write_deadline
from torpor.host.trouble import translated
from torpor.host.volume_notes import write_volumes
from torpor.kit.faultpoints import reached
from torpor.kit.owning import own
from torpor.kit.shielded import wait_ended
from torpor.model.capacity import MIB
from torpor.model.identity import Identity
from torpor.model.ids import SandboxId
from torpor.model.network import NO_NETWORK, Egress
from torpor.model.usage import Reading
from torpor.model.volume import Attachment

_log = structlog.get_logger(__name__)
_NOTHING = Reading()
_NOT_NOTED = "the machine could not be put on record"
# The guest bounds each hook; this is for a guest that does not.
_HOOKS_S = 70.0

Event = Literal["wake", "fork"]


@dataclass(frozen=True, slots=True)
class Birth:
    """What a frozen guest becomes: who it is, what is added to its environment, and what its hooks are told it was.

    `secrets` take the place of those that the guest holds (None: it keeps them).
    `deadline`, in seconds since 1970, is noted in its place unless it is None; `counted` is what the sandbox has used
    so far. `egress`: what it may reach. `confirm` is called when the guest has acknowledged all of it, its machine is
    on record, and its processes stand still yet; `take_back` if a later step fails, while the machine still lives.
    `volumes`: which it has, in the order of its bays; `mounts` if they are new to it, and in their bays.
    `settle` runs in a thread meanwhile they are let go, and has to be done before anybody hears that the sandbox lives.
    """

    identity: Identity
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # users put secrets there
    secrets: Mapping[str, str] | None = field(default=None, repr=False)
    event: Event | None = None
    deadline: float | None = None
    egress: Egress = NO_NETWORK
    volumes: tuple[Attachment, ...] = ()
    mounts: bool = False
    counted: Reading = _NOTHING
    confirm: Callable[[], None] = lambda: None
    take_back: Callable[[], None] = lambda: None
    settle: Callable[[], None] = lambda: None


async def restore(opening: Awaitable[Prepared], birth: Birth) -> Incarnation:
    """Bring a prepared guest to life under an identity. If any step fails, what was opened is closed, last first.

    Raises RestoreFailed, InvalidRequest for an environment that is too long, and what preparing raises.
    """
    started = time.monotonic()
    identity, event = birth.identity, birth.event
    async with AsyncExitStack() as undo:
        prepared = await own(undo, opening)  # a guest that answers, and whose processes stand still
        guest, has_processes = prepared.guest, prepared.base.has_processes
        _note_deadline(prepared, birth)
        await _judge_by(prepared, birth.egress)
        await _have_volumes(prepared, birth)
        # Entropy, clock, names; acknowledged, else the restore fails.
        thaw = not has_processes
        hooks = await guest.adopt(identity, env=birth.env, secrets=birth.secrets, thaw=thaw, event=event)
        reached("restore.adopted")
        incarnation = _on_record(prepared, birth, boot_ms=round((time.monotonic() - started) * 1000))
        birth.confirm()
        undo.callback(birth.take_back)
        prepared.slot.open_gate()
        reached("restore.confirmed")
        if has_processes:
            await _let_go(guest, birth.settle)
        reached("restore.thawed")
        guest.release()
        if hooks and event is not None:
            await _run_hooks(guest, identity.sandbox_id, event)
        undo.pop_all()
    return incarnation


def _note_deadline(prepared: Prepared, birth: Birth) -> None:
    if birth.deadline is not None:
        with translated(RestoreFailed, _NOT_NOTED):
            write_deadline(prepared.place.folder, birth.deadline)


async def _judge_by(prepared: Prepared, egress: Egress) -> None:
    """Put in force, and note, what the guest may reach, before anything of it can."""
    with translated(RestoreFailed, _NOT_NOTED):
        write_egress(prepared.place.folder, egress)
    try:
        await prepared.slot.change(egress)
    except Failed as error:
        raise RestoreFailed(error.message) from error


async def _have_volumes(prepared: Prepared, birth: Birth) -> None:
    """Note which volumes it has, and have those mounted that are new to it."""
    with translated(RestoreFailed, _NOT_NOTED):
        write_volumes(prepared.place.folder, birth.volumes)
    if birth.mounts:
        for bay, each in enumerate(birth.volumes):
            await prepared.guest.mount(bay, each.path, each.size_mb * MIB, read_only=each.read_only)


def _on_record(prepared: Prepared, birth: Birth, *, boot_ms: int) -> Incarnation:
    """Note whose the machine is: from here on it outlives this program. What it used before was nobody's."""
    sandbox, machine = birth.identity.sandbox_id, prepared.machine
    spent = machine.cpu_seconds() or 0.0
    before = dataclasses.replace(birth.counted, cpu_seconds=birth.counted.cpu_seconds - spent)
    incarnation = Incarnation(
        sandbox, prepared.base, prepared.place, machine, prepared.guest, Meter(machine, before), boot_ms=boot_ms
    )
    incarnation.slot, incarnation.egress, incarnation.volumes = prepared.slot, birth.egress, birth.volumes
    with translated(RestoreFailed, _NOT_NOTED):
        put_on_record(incarnation)
    return incarnation


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
