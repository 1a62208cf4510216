"""What sandboxes may reach, as requests, records and hosts say it; and what a new one may."""

from __future__ import annotations

from torpor.control.service.plane import Plane
from torpor.errors import InvalidRequest, Unsupported
from torpor.model.network import NO_NETWORK, Egress, Mode, egress_from
from torpor.wire import host
from torpor.wire.reach import AllowList, Reach


def asked_for(reach: Reach | None) -> Egress | None:
    """Return the policy that a request asks for, None if it asks for none. Raises InvalidRequest."""
    return None if reach is None else policy_of(reach)


def policy_of(reach: Reach) -> Egress:
    """Return the policy that a request asks for. Raises InvalidRequest."""
    try:
        return egress_from(reach.allow if isinstance(reach, AllowList) else reach)
    except ValueError as error:
        raise InvalidRequest(f"network: {error}") from error


def spoken(egress: Egress) -> Reach:
    """Return a policy as clients see it."""
    said = egress.spoken()
    if isinstance(said, list):
        return AllowList(allow=said)
    return "internet" if egress.mode is Mode.INTERNET else "none"


def order_of(egress: Egress) -> host.Network:
    """Return a policy as the host takes it."""
    return host.Network(mode=egress.mode.value, cidrs=list(egress.cidrs), names=list(egress.names))


async def chosen(plane: Plane, asked: Egress | None, otherwise: Egress) -> Egress:
    """Return what a new sandbox may reach: what is asked for, else `otherwise`, or nothing where there is no way out.

    Raises Unsupported if something is asked for and the host has no network.
    """
    wanted = otherwise if asked is None else asked
    if wanted.mode is Mode.NONE:
        return wanted
    can = await plane.host.capabilities()
    if can.network:
        return wanted
    if asked is None:
        return NO_NETWORK
    raise no_network(can)


def no_network(can: host.Capabilities) -> Unsupported:
    """Return the error for asking for a network where there is none."""
    trouble = can.network_trouble or "it has none"
    return Unsupported(
        f"sandboxes on this host have no network: {trouble}",
        hint='give "none" or leave network out; `torpor doctor` tells what the host lacks',
    )
