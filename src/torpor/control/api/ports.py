"""`/v1/sandboxes/{id}/ports`: servers in a sandbox, and links to them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request

from torpor import errors
from torpor.control.api.deps import TheCaller, ThePlane, TheSandbox
from torpor.control.api.problems import refusals
from torpor.control.proxy.addresses import Address, Domain, path_of
from torpor.control.proxy.headers import TOKEN_QUERY
from torpor.control.service.ports import is_reachable, link, listening
from torpor.wire.ports import LinkOrder, LinkView, PortView

router = APIRouter(prefix="/v1/sandboxes/{id}/ports", tags=["ports"])

_REFUSALS = refusals(errors.NotFound, errors.Conflict, errors.SandboxLost)
Port = Annotated[int, Path(description="a TCP port", ge=1, le=65535)]


@router.get("", responses=_REFUSALS)
async def list_ports(plane: ThePlane, owned: TheSandbox, request: Request) -> list[PortView]:
    """List the TCP ports on which servers in a sandbox listen, by number; one that sleeps is woken."""
    domain = plane.ports.domain
    return [
        PortView(
            port=port.port,
            address=port.address,
            process=port.process,
            url=f"{_origin(domain, Address(owned.id, port.port), request)}/" if is_reachable(port) else None,
        )
        for port in await listening(plane, owned)
    ]


@router.post("/{port}/link", status_code=201, responses=_REFUSALS)
async def make_link(
    plane: ThePlane, owned: TheSandbox, caller: TheCaller, port: Port, request: Request, order: LinkOrder | None = None
) -> LinkView:
    """Make a link to a port: whoever has it may use the server there until it expires. Wakes nothing."""
    lasts_s = (order or LinkOrder()).expires_seconds
    token, expires_at = await link(plane, owned, port, caller.key_id, lasts_s)
    address, query = Address(owned.id, port), f"?{TOKEN_QUERY.decode()}={token}"
    here = f"{request.url.scheme}://{request.url.netloc}"
    return LinkView(
        port=port,
        url=f"{_origin(plane.ports.domain, address, request)}/{query}",
        path_url=f"{here}{path_of(address)}{query}",
        token=token,
        expires_at=expires_at,
    )


def _origin(domain: Domain, address: Address, request: Request) -> str:
    return domain.origin_of(address, request.url.scheme, request.url.netloc)
