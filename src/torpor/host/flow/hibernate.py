"""hibernate: freeze, then close."""

from __future__ import annotations

import dataclasses

import structlog

from torpor.errors import OutcomeUnknown
from torpor.guest.client import Guest
from torpor.host.admission import need_of_living
from torpor.host.flow.freeze import FreezeOrder, freeze
from torpor.host.flow.stillness import QUIESCE_S
from torpor.host.host import Host
from torpor.host.live import Incarnation, Sleeper
from torpor.host.metering import measure, note
from torpor.host.sleep import clear
from torpor.kit.faultpoints import reached
from torpor.kit.shielded import shielded
from torpor.model.ids import SandboxId
from torpor.model.snapshot import Snapshot

_log = structlog.get_logger(__name__)


async def hibernate(host: Host, sandbox: SandboxId, order: FreezeOrder) -> Snapshot:
    """Put a sandbox to sleep: no process and no memory of it is left. If it sleeps already, return what it sleeps in.

    Commands and transfers under way wait for it to wake. Raises as `freeze` does; the sandbox is as before then.
    """
    async with host.live.lock(sandbox):
        if (sleeper := host.live.sleeper(sandbox)) is not None and sleeper.base.snapshot is not None:
            return sleeper.base.snapshot
        incarnation = host.live.get(sandbox)
        return await shielded(_fall_asleep(host, incarnation, dataclasses.replace(order, stay=True)))


async def _fall_asleep(host: Host, incarnation: Incarnation, order: FreezeOrder) -> Snapshot:
    snapshot = await freeze(host, incarnation, order)
    reached("hibernate.frozen")
    used = await measure(incarnation)
    note(incarnation)
    sleeper = Sleeper(incarnation.id, incarnation.base, incarnation.place, used=used)
    sleeper.egress, sleeper.volumes = incarnation.egress, incarnation.volumes
    host.live.enter(sleeper)
    with host.admission.holding(need_of_living(incarnation)):
        if incarnation.guest.confirmed:  # one that was paused was not to leave; nothing is asked of it again
            await incarnation.guest.quiesce(timeout_s=QUIESCE_S, leaving=True)
        await incarnation.machine.aclose()
    await incarnation.slot.aclose()
    reached("hibernate.ended")
    sleeper.line = await _line_of(incarnation)
    clear(incarnation.place.folder)
    return snapshot


async def _line_of(incarnation: Incarnation) -> Guest | None:
    """Return the line that waits for the guest to wake; None if what was under way on it is lost."""
    try:
        await incarnation.guest.wait_suspended()
    except OutcomeUnknown as error:
        _log.warning("what was under way is lost", sandbox=incarnation.id, error=error.message)
        await incarnation.guest.aclose()
        return None
    return incarnation.guest
