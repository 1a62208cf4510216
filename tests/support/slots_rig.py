"""Slots in the kernel, with guests that stand in on them, for tests of what passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import dns.message
import dns.rcode

from guest_wire import GuestWire, guest_on
from outside_world import NAME_SERVER
from torpor.model.network import Egress, Mode
from torpor.network.config import NameServer, NetworkConfig
from torpor.network.contract import Network, Slot
from torpor.network.slots import network_of

_T = TypeVar("_T")
SERVERS = (NameServer(NAME_SERVER),)


def allowing(*entries: str) -> Egress:
    """Return the allow-list of networks and names."""
    networks = tuple(entry for entry in entries if "/" in entry)
    return Egress(Mode.ALLOW, networks, tuple(entry for entry in entries if entry not in networks))


@asynccontextmanager
async def network_in(home: Path, config: NetworkConfig | None = None) -> AsyncIterator[Network]:
    """A network of a data directory, that asks the world's name server."""
    async with network_of(home, config or NetworkConfig(name_servers=SERVERS)) as network:
        assert network.trouble == ""
        yield network


@asynccontextmanager
async def guest_in(network: Network, egress: Egress | None = None) -> AsyncIterator[tuple[Slot, GuestWire]]:
    """A guest in a slot of its own, with an open gate."""
    slot = await network.take()
    try:
        with guest_on(slot) as guest:
            await slot.change(egress or Egress())
            slot.open_gate()
            yield slot, guest
    finally:
        await slot.aclose()


async def meanwhile(work: Callable[..., _T], *values: object) -> _T:
    """Do something that waits, while this loop goes on answering guests."""
    return await asyncio.to_thread(work, *values)


async def resolved(guest: GuestWire, name: str, kind: str = "A") -> list[str] | str:
    """Return what a guest is told for a name, sorted, or the code of the refusal."""
    question = dns.message.make_query(name, kind)
    told = await meanwhile(guest.ask, "10.113.111.1", 53, question.to_wire())
    if not told:
        return "silence"
    answer = dns.message.from_wire(told)
    assert answer.id == question.id
    if answer.rcode() is not dns.rcode.NOERROR:
        return dns.rcode.to_text(answer.rcode())
    return sorted(str(record) for rrset in answer.answer for record in rrset)
