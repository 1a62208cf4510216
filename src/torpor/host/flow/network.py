"""network: what a sandbox may reach, changed while it lives or sleeps."""

from __future__ import annotations

from torpor.errors import Failed, Unsupported
from torpor.host.host import Host
from torpor.host.live import Incarnation, Sleeper, not_here
from torpor.host.network_notes import write_egress
from torpor.host.trouble import translated
from torpor.host.unreachable import Unreachable
from torpor.kit.shielded import shielded
from torpor.model.ids import SandboxId
from torpor.model.network import Egress, Mode
from torpor.network.contract import Denied

_NOT_NOTED = "what the sandbox may reach was not noted"


async def set_network(host: Host, sandbox: SandboxId, egress: Egress) -> None:
    """Have a sandbox reach this from now on, or once it is awake. What is under way and is not allowed is cut off.

    Raises NotFound, Unavailable for one out of reach, Unsupported if it has no network, OutOfSpace, Failed; what was in
    force is so still.
    """
    async with host.live.lock(sandbox):
        await shielded(_set(host, sandbox, egress))


async def _set(host: Host, sandbox: SandboxId, egress: Egress) -> None:
    match host.live.whatever(sandbox):
        case Sleeper() as sleeper:
            with translated(Failed, _NOT_NOTED):
                write_egress(sleeper.place.folder, egress)
            sleeper.egress = egress
        case Incarnation() as incarnation:
            await _change(host, incarnation, egress)
        case Unreachable() as lost:
            raise lost.refusal()
        case None:
            raise not_here(sandbox)


async def _change(host: Host, incarnation: Incarnation, egress: Egress) -> None:
    if incarnation.slot.guest_ip is None and egress.mode is not Mode.NONE:
        why = host.preparer.network.trouble or "what it came from was frozen without a network card"
        raise Unsupported(f"the sandbox {incarnation.id} has no network: {why}")
    await incarnation.slot.change(egress)
    try:
        with translated(Failed, _NOT_NOTED):
            write_egress(incarnation.place.folder, egress)
    except BaseException:
        await incarnation.slot.change(incarnation.egress)
        raise
    incarnation.egress = egress


async def denied(host: Host, sandbox: SandboxId) -> list[Denied]:
    """Return what was not let through of a sandbox since it came to life; nothing for one that sleeps.

    Raises NotFound, Unavailable for one out of reach, Failed.
    """
    match host.live.whatever(sandbox):
        case Sleeper():
            return []
        case Incarnation() as incarnation:
            return await incarnation.slot.denied()
        case Unreachable() as lost:
            raise lost.refusal()
        case None:
            raise not_here(sandbox)
