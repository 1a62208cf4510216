"""The part of the host agent's interface that has to do with what sandboxes may reach."""

from __future__ import annotations

import dataclasses

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from torpor.errors import InvalidRequest
from torpor.host.flow.network import denied, set_network
from torpor.host.host import Host
from torpor.host.live import Incarnation, not_here
from torpor.host.parsing import body_of, json_answer, sandbox_of
from torpor.host.views import guest_ip_of, network_view
from torpor.model.network import Egress, Mode, egress_from
from torpor.wire import host as wire


def network_routes(host: Host, root: str) -> list[Route]:
    """Return the routes below `root`."""
    api = _Api(host)
    one = f"{root}/incarnations/{{id}}/network"
    return [
        Route(f"{root}/capabilities", api.capabilities, methods=["GET"]),
        Route(one, api.state, methods=["GET"]),
        Route(one, api.change, methods=["PUT"]),
    ]


def told_egress(network: wire.Network | None) -> Egress | None:
    """Return the policy that a request has, if it has one, checked. Raises InvalidRequest."""
    return None if network is None else egress_of(network)


def egress_of(network: wire.Network) -> Egress:
    """Return a policy, checked: its words go into the firewall. Raises InvalidRequest."""
    if network.mode != "allow":
        return Egress(Mode(network.mode))
    try:
        return egress_from([*network.cidrs, *network.names])
    except ValueError as error:
        raise InvalidRequest(f"network: {error}") from error


class _Api:
    def __init__(self, host: Host) -> None:
        self._host = host

    async def capabilities(self, _request: Request) -> Response:
        trouble = self._host.preparer.network.trouble
        return json_answer(wire.Capabilities(network=not trouble, network_trouble=trouble or None))

    async def state(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        counted = await denied(self._host, sandbox)
        there = self._host.live.whatever(sandbox)
        if there is None:  # it was deleted meanwhile
            raise not_here(sandbox)
        guest_ip = guest_ip_of(there) if isinstance(there, Incarnation) else None
        told = [wire.Denied(**dataclasses.asdict(each)) for each in counted]
        return json_answer(wire.NetworkState(policy=network_view(there.egress), guest_ip=guest_ip, denied=told))

    async def change(self, request: Request) -> Response:
        await set_network(self._host, sandbox_of(request), egress_of(await body_of(request, wire.Network)))
        return Response(status_code=204)
