"""The control plane over a fake host and a store in memory, on a clock that jumps."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from torpor.control.api.app import create_app
from torpor.control.hosts import HostClient
from torpor.control.service.plane import DEFAULT_WORKSPACE, Plane, plane_of
from torpor.control.service.sandboxes import Owned
from torpor.control.store.contract import Store
from torpor.model.ids import SandboxId
from torpor.testing.clock import JumpClock
from torpor.testing.host import FakeHost
from torpor.testing.store import MemoryStore
from torpor.wire.memory import MemoryTransport

KEY = "tpr_" + "k" * 43
NOTE = "/work/note"
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


@asynccontextmanager
async def control_rig(store: Store | None = None) -> AsyncIterator[Rig]:
    """Yield a rig without tasks in the background; the store outlives it."""
    clock = JumpClock()
    host = FakeHost(clock)
    kept = store or MemoryStore()
    client = HostClient(host.transport())
    plane = plane_of(kept, client, clock)
    transport = MemoryTransport(create_app(plane, KEY))
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://torpor", headers={"authorization": f"Bearer {KEY}"}, timeout=None
    ) as http:
        yield Rig(host, clock, kept, plane, http)
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
