"""The control plane over a real host agent on a fake VMM: everything but QEMU, the network and the guest's kernel."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import httpx2

from control_rig import KEY
from host_rig import HostRig
from torpor.control.api.app import create_app
from torpor.control.hosts import HostClient
from torpor.control.reconcile import reconcile
from torpor.control.service.plane import Plane, plane_of
from torpor.host.api import host_app
from torpor.storage.layout import Layout
from torpor.testing.clock import JumpClock
from torpor.testing.store import MemoryStore
from torpor.wire.memory import MemoryTransport


class WholeRig:
    """A server on a data directory. `crash` ends it as kill -9 does, and another one starts on what it left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clock, self._store = JumpClock(), MemoryStore()
        self._open = AsyncExitStack()
        self.rig: HostRig
        self.plane: Plane
        self.http: httpx2.AsyncClient

    async def bake(self) -> None:
        """Make the template `base`, and start."""
        self.rig = HostRig(Layout(self._folder / "home"))
        await self.rig.bake()
        await self._start()

    async def _start(self) -> None:
        client = HostClient(MemoryTransport(host_app(self.rig.host)))
        self._open.push_async_callback(client.aclose)
        self.plane = plane_of(self._store, client, self._clock)
        transport = MemoryTransport(create_app(self.plane, KEY))
        self.http = await self._open.enter_async_context(
            httpx2.AsyncClient(
                transport=transport,
                base_url="http://localhost/v1",
                headers={"authorization": f"Bearer {KEY}"},
                timeout=None,
            )
        )
        await reconcile(self.plane)

    async def crash(self, *, machines_die: bool = False) -> None:
        """Lose all that the server had in memory, and every machine too if they die with it; and start another one."""
        await self._open.aclose()
        self.rig = await self.rig.killed(machines_die=machines_die)
        await self._start()

    async def aclose(self) -> None:
        """End it and all its machines."""
        await self._open.aclose()
        for incarnation in self.rig.host.live.all():
            await incarnation.aclose()
        for sleeper in self.rig.host.live.sleepers():
            await sleeper.aclose()
