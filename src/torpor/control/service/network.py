"""The network of sandboxes that there are: shown, and changed while they live.

The record is the truth. The host is told with every order that brings a machine to life, and when it changes; where the
host has another policy after all, because a server died between the two, the reconciler tells it again.
"""

from __future__ import annotations

from torpor.control.service.passage import lost
from torpor.control.service.plane import Plane
from torpor.control.service.reach import no_network, order_of, policy_of, spoken
from torpor.control.service.sandboxes import Owned, deleting, show, standing
from torpor.errors import NotFound, OutcomeUnknown, Refused, SandboxLost, TorporError
from torpor.kit.shielded import shielded
from torpor.model.lifecycle import STANDING, State
from torpor.model.network import Egress, Mode
from torpor.model.sandbox import Sandbox
from torpor.wire import host
from torpor.wire.reach import AllowList, Reach

# States in which a host has something that a policy can be in force for.
_THERE = STANDING | {State.HIBERNATED}


async def change_network(plane: Plane, owned: Owned, reach: Reach) -> tuple[Sandbox, host.NetworkState]:
    """Change what a sandbox may reach and return as `network_of`. It is so at once, in a sleeping one from its wake on.

    Raises InvalidRequest, NotFound, SandboxLost, Conflict for one that is being deleted, Unsupported; OutcomeUnknown
    where it is recorded, and the host could not be told: it will be, as soon as it can.
    """
    asked = policy_of(reach)
    can = await plane.host.capabilities()
    if asked.mode is not Mode.NONE and not can.network:
        raise no_network(can)
    await standing(plane, owned)
    async with plane.gate.alone(owned.id):
        before = await show(plane, owned)
        if before.state is State.FAILED:
            raise lost(before)
        address = None if asked.mode is Mode.NONE else before.guest_ip
        changed = await plane.store.set_network(owned.id, asked, address)
        if changed is None:
            raise deleting(owned)
        if can.network and changed.state in _THERE:
            await _tell(plane, before, changed)
        if before.network != changed.network:
            plane.noter.note("network", changed, network=_json(changed.network), before=_json(before.network))
        state = await _state(plane, changed, can)
        if state.guest_ip != changed.guest_ip and changed.state in STANDING:
            changed = await plane.store.set_network(owned.id, asked, state.guest_ip) or changed
    return changed, state


async def _tell(plane: Plane, before: Sandbox, changed: Sandbox) -> None:
    """Tell the host; if it refuses, it is as before."""
    try:
        await plane.host.set_network(changed.id, order_of(changed.network))
    except (NotFound, SandboxLost):  # what became of it is for the reconciler to find out
        plane.bells.truth.set()
    except Refused:
        await shielded(plane.store.set_network(changed.id, before.network, before.guest_ip))
        raise
    except TorporError as error:
        plane.bells.truth.set()
        message = f"the network of sandbox {changed.id} is recorded, and not known to be in force yet: {error.message}"
        raise OutcomeUnknown(message, hint="the server goes on telling its host; look again") from error


async def network_of(plane: Plane, owned: Owned) -> tuple[Sandbox, host.NetworkState]:
    """Return a sandbox and what its host knows of its network, without waking it. Raises NotFound as `show`."""
    sandbox = await show(plane, owned)
    return sandbox, await _state(plane, sandbox, await plane.host.capabilities())


async def _state(plane: Plane, sandbox: Sandbox, can: host.Capabilities) -> host.NetworkState:
    nothing = host.NetworkState(policy=order_of(sandbox.network))
    if sandbox.state is State.FAILED or not can.network:
        return nothing
    try:
        return await plane.host.network(sandbox.id)
    except (NotFound, SandboxLost):  # it is about to come to life, or it is gone, and nobody has noticed yet
        return nothing


def _json(egress: Egress) -> str | dict[str, list[str]]:
    reach = spoken(egress)
    return reach.model_dump() if isinstance(reach, AllowList) else reach
