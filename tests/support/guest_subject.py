"""A guest for the tests of what every guest does: the real agent, as a process of this machine, or the fake one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from guest_agent import running_agent
from relay import Relay
from torpor.guest.client import Guest, connect
from torpor.kit.shielded import wait_ended
from torpor.model.identity import Identity
from torpor.model.ids import new_sandbox_id
from torpor.testing.fake_guest import FakeGuest

KINDS = ("agent", "agent-without-cgroups", "fake")


@dataclass
class Subject:
    """A guest behind a port that hosts may leave and come back to, and a folder in it to work in."""

    guest: Guest
    place: str
    relay: Relay

    async def leave(self, cut: int = 0) -> None:
        """Freeze it and end its machine, up to `cut` bytes later than it has confirmed."""
        await self.guest.quiesce(timeout_s=10, leaving=True)
        await self.relay.end(cut)
        await self.guest.wait_suspended()

    async def come_anew(self) -> Guest:
        """Break the line off, as the end of a host agent does, and return the guest as another one reaches it."""
        await self.relay.end()
        await self.guest.aclose()
        self.guest = await connect(self.relay.connect(), timeout_s=10)
        return self.guest

    async def wake(self) -> None:
        """Let it go on, as itself."""
        await self.guest.continue_on(self.relay.connect())
        await self.guest.adopt(Identity(new_sandbox_id()), thaw=False, event="wake")
        await self.guest.thaw()
        self.guest.release()


@asynccontextmanager
async def subject_of(kind: str, folder: Path) -> AsyncIterator[Subject]:
    """Yield a guest of one of KINDS."""
    if kind == "fake":
        ours, theirs = socket.socketpair()
        serving = asyncio.create_task(FakeGuest().serve(theirs))
        async with _behind_a_relay(ours, "/work") as subject:
            yield subject
        await wait_ended(serving)
        return
    (folder / "work").mkdir()
    async with (
        running_agent(folder, cgroups=kind == "agent") as agent,
        _behind_a_relay(agent.sock.dup(), str(folder / "work")) as subject,
    ):
        yield subject


@asynccontextmanager
async def _behind_a_relay(sock: socket.socket, place: str) -> AsyncIterator[Subject]:
    relay = Relay(sock)
    subject = Subject(await connect(relay.connect(), timeout_s=10), place, relay)
    try:
        yield subject
    finally:
        await subject.guest.aclose()
        await relay.aclose()
