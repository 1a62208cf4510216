"""The gate over a store in memory, and a sandbox to send through it."""

from __future__ import annotations

from datetime import UTC, datetime

from torpor.control.service.passage import Bells, Gate
from torpor.control.store.contract import Store
from torpor.model.ids import SandboxId, TemplateName, WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox
from torpor.testing.clock import JumpClock
from torpor.testing.store import MemoryStore

ID = SandboxId("sbx-1111111111111111")


def sandbox(state: State = State.CREATING) -> Sandbox:
    """Return the sandbox ID in a state."""
    return Sandbox(
        id=ID,
        workspace=WorkspaceId("default"),
        template=TemplateName("base"),
        state=state,
        created_at=datetime(2030, 1, 1, tzinfo=UTC),
        cpu=1,
        memory_mb=512,
        disk_gb=8,
    )


class Bench:
    """A gate, and what it stands on."""

    def __init__(self, store: Store | None = None) -> None:
        self.store = store or MemoryStore()
        self.bells = Bells()
        self.clock = JumpClock()
        self.gate = Gate(self.store, self.clock, self.bells)

    async def state(self) -> State:
        """Return the recorded state of the sandbox ID."""
        found = await self.store.get(ID)
        assert found is not None
        return found.state
