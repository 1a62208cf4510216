"""delete: close, then forget."""

from __future__ import annotations

import structlog

from torpor.errors import TorporError
from torpor.host.admission import need_of_living
from torpor.host.flow.stillness import QUIESCE_S
from torpor.host.host import Host
from torpor.host.live import Incarnation
from torpor.host.metering import measure
from torpor.kit.faultpoints import reached
from torpor.kit.files import remove_tree
from torpor.kit.shielded import shielded
from torpor.model.ids import SandboxId
from torpor.model.usage import Reading

_log = structlog.get_logger(__name__)


async def delete(host: Host, sandbox: SandboxId) -> Reading | None:
    """End a sandbox; after it only its snapshots are on the host. One that is not here is already deleted.

    Returns what it had used by then, None if it was not here. Raises Failed if its machine does not end; it is still
    here then.
    """
    async with host.live.lock(sandbox):
        return await shielded(_forget(host, sandbox))


async def _forget(host: Host, sandbox: SandboxId) -> Reading | None:
    used: Reading | None = None
    host.admission.release(sandbox)
    if (there := host.live.take(sandbox)) is not None:
        try:
            with host.admission.holding(need_of_living(there)):
                if isinstance(there, Incarnation):
                    await _write_back(host, there)
                used = await measure(there) if isinstance(there, Incarnation) else there.usage()
                await there.end()
        except BaseException:
            host.live.enter(there)  # or nobody would know of a machine that lives
            raise
        reached("delete.ended")
    remove_tree(host.layout.sandboxes / sandbox)
    return used


async def _write_back(host: Host, incarnation: Incarnation) -> None:
    """Have what a guest wrote be in its volumes, which outlive it. What stands still has done so before.

    A guest that does not answer is ended all the same: its volumes are then as after a loss of power.
    """
    keeps = any(each.writes for each in incarnation.volumes) and incarnation.machine.alive
    if not keeps or incarnation.stands_still or incarnation.starved:
        return
    try:
        await incarnation.call_again(host.connect_guest)
        await incarnation.guest.quiesce(timeout_s=QUIESCE_S, leaving=True)
    except TorporError as error:
        _log.warning("what was written last may not be in a volume", sandbox=incarnation.id, error=error.message)
