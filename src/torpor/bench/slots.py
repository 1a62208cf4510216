"""What a network costs: the slots of a host agent, without machines."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from torpor.bench.figures import Figure, Series
from torpor.bench.subject import Subject
from torpor.errors import Unsupported
from torpor.model.network import Egress, Mode
from torpor.network.config import NetworkConfig
from torpor.network.contract import Network, Slot
from torpor.network.slots import network_of

_ALLOW = Egress(Mode.ALLOW, ("8.8.8.0/24",), ("example.com", "*.example.org"))


def slots(subject: Subject, rounds: int) -> Iterator[Figure]:
    """Make slots as a host agent does, open them as a create does, and give them up again. Nothing is sent."""
    subject.here()
    opened, policy = asyncio.run(_opened(rounds))
    yield opened.figure("slot-open", "network of a create: a slot that is ready, its tap, its gate")
    yield policy.figure("slot-policy", "an allow-list put in force")
    yield asyncio.run(_made(rounds)).figure("slot-make", "a slot that is not made ahead")


async def _opened(rounds: int) -> tuple[Series, Series]:
    opened, policy = Series(), Series()
    async with _network(ready=1) as network:
        for _ in range(rounds):
            await network.settled()
            began = time.perf_counter()
            slot = await network.take()
            tap = slot.open_tap()
            await slot.change(Egress())
            slot.open_gate()
            opened.append((time.perf_counter() - began) * 1000)
            await network.settled()  # what is made ahead by now is nobody's wait
            began = time.perf_counter()
            await slot.change(_ALLOW)
            policy.append((time.perf_counter() - began) * 1000)
            await _give_up(slot, tap)
    return opened, policy


async def _made(rounds: int) -> Series:
    made = Series()
    async with _network(ready=0) as network:
        for _ in range(rounds):
            began = time.perf_counter()
            slot = await network.take()
            made.append((time.perf_counter() - began) * 1000)
            await _give_up(slot, None)
            await network.settled()
    return made


async def _give_up(slot: Slot, tap: int | None) -> None:
    if tap is not None:
        os.close(tap)
    await slot.aclose()


@asynccontextmanager
async def _network(*, ready: int) -> AsyncIterator[Network]:
    """A network of a data directory of its own. Raises Unsupported if there can be none."""
    with tempfile.TemporaryDirectory(prefix="torpor-bench-") as home:
        async with network_of(Path(home), NetworkConfig(ready=ready)) as network:
            if network.trouble:
                raise Unsupported(f"sandboxes on this host have no network: {network.trouble}")
            await network.sweep(())
            yield network
