"""The control plane over a fake host and a store in memory, on a clock that jumps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from torpor.control.access import AccessConfig
from torpor.control.api.app import create_app
from torpor.control.hosts import HostClient
from torpor.control.proxy.addresses import Domain
from torpor.control.service.plane import DEFAULT_WORKSPACE, Plane, Rules, plane_of
from torpor.control.service.sandboxes import Owned
from torpor.control.store.contract import EventListing, Store
from torpor.model.capacity import Quota
from torpor.model.ids import SandboxId
from torpor.testing.clock import JumpClock
from torpor.testing.host import FakeHost
from torpor.testing.store import MemoryStore
from torpor.wire.memory import MemoryTransport

KEY = "tpr_" + "k" * 43
NOTE = "/work/note"
# How long something that is sure to happen may take, on a machine that is busy with other things.
PATIENCE_S = 30
NO_QUOTA = Quota()
NOBODY = "sbx-0000000000000000"


@dataclass(frozen=True)
class Rig:
    """The parts a test may reach for, and a client that has the key."""

    host: FakeHost
    clock: JumpClock
    store: Store
    plane: Plane
    http: httpx2.AsyncClient

    async def create(self, **body: Any) -> str:
        """Create a sandbox through the API and return its id."""
        answer = await self.http.post("/v1/sandboxes", json=body)
        assert answer.status_code == 201, answer.text
        made: str = answer.json()["id"]
        return made

    async def post(self, sandbox_id: str, verb: str, **body: Any) -> Any:
        """Ask for a verb of a sandbox through the API, and return the JSON of its success, None where it has none."""
        answer = await self.http.post(f"/v1/sandboxes/{sandbox_id}/{verb}", json=body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    async def show(self, sandbox_id: str) -> Any:
        """Return a sandbox as the API shows it."""
        return (await self.http.get(f"/v1/sandboxes/{sandbox_id}")).json()

    async def write(self, sandbox_id: str, text: str) -> None:
        """Write the file /work/note in the guest."""
        answer = await self.http.put(f"/v1/sandboxes/{sandbox_id}/fs", params={"path": NOTE}, content=text)
        assert answer.status_code == 200, answer.text

    async def read(self, sandbox_id: str) -> str:
        """Read the file /work/note in the guest."""
        return (await self.http.get(f"/v1/sandboxes/{sandbox_id}/fs", params={"path": NOTE})).text

    async def status(self, sandbox_id: str) -> str | None:
        """Return the recorded state of a sandbox."""
        sandbox = await self.store.get(SandboxId(sandbox_id))
        return None if sandbox is None else sandbox.state.value

    async def wait_status(self, sandbox_id: str, state: str) -> None:
        """Return when a sandbox has come to a state. Every change rings a bell, so nothing is polled."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                coming = self.plane.bells.news.coming
                if await self.status(sandbox_id) == state:
                    return
                await coming.wait()

    async def told(self, sandbox_id: str, *types: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the events of some types that happened to a sandbox, the earliest first."""
        await self.plane.noter.flush()
        listing = EventListing(DEFAULT_WORKSPACE, SandboxId(sandbox_id), limit=1000, types=frozenset(types))
        return [(event.type, dict(event.data)) for event in await self.store.events(listing)]

    @asynccontextmanager
    async def working(self, *works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
        """Run the server's background work while the block lasts, from the moment at which it has nothing to do."""
        tasks = [asyncio.create_task(work) for work in works]
        await self.clock.wait_sleepers(len(tasks))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [one for one in ended if not isinstance(one, asyncio.CancelledError)] == []


@asynccontextmanager
async def control_rig(
    store: Store | None = None,
    host: FakeHost | None = None,
    clock: JumpClock | None = None,
    *,
    tells_commands: bool = True,
    quota: Quota = NO_QUOTA,
    access: AccessConfig | None = None,
    ports_domain: Domain | None = None,
) -> AsyncIterator[Rig]:
    """Yield a rig without tasks in the background; store, host and clock outlive it."""
    clock = clock or JumpClock()
    host = host or FakeHost(clock)
    kept = store or MemoryStore()
    client = HostClient(host.transport())
    rules = Rules(tells_commands=tells_commands, quota=quota, ports_domain=ports_domain or Domain())
    plane = plane_of(kept, client, clock, rules)
    transport = MemoryTransport(create_app(plane, KEY, access))
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://localhost", headers={"authorization": f"Bearer {KEY}"}, timeout=None
    ) as http:
        yield Rig(host, clock, kept, plane, http)
    await plane.chores.aclose()
    await host.end_jobs()
    await client.aclose()


def mine(sandbox_id: str) -> Owned:
    """Return a sandbox as the key's owner names it."""
    return Owned(DEFAULT_WORKSPACE, SandboxId(sandbox_id))


def events_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of a whole stream, comments left out."""
    found: list[tuple[str, dict[str, Any]]] = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found
