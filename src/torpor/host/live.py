"""The incarnations that are alive on this host."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field

from torpor.errors import NotFound, RestoreFailed, SandboxLost, Unavailable
from torpor.guest.client import Guest
from torpor.kit.locks import KeyedLocks
from torpor.kit.owning import own
from torpor.kit.shielded import shielded
from torpor.model.ids import SandboxId
from torpor.model.template import Template
from torpor.vmm.driver import Machine, Place

# Connects to the guest agent at the other end of a machine's channel; raises RestoreFailed if it does not answer.
ConnectGuest = Callable[[socket.socket], Awaitable[Guest]]


@dataclass(slots=True)
class Incarnation:
    """One run of a sandbox, from restore to close. `boot_ms`: from the order to the guest's acknowledgement.

    `guest` is the line to the guest as it was last made; see `reach`.
    """

    id: SandboxId
    template: Template
    place: Place
    machine: Machine
    guest: Guest
    env: Mapping[str, str] = field(repr=False)  # users put secrets there
    boot_ms: int
    owned: AsyncExitStack = field(repr=False)
    _reaching: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    async def reach(self, connect: ConnectGuest) -> Guest:
        """Return the line to the guest, made anew if it broke off while the machine lives.

        A line breaks when the guest says what no agent says. Raises Unavailable if the guest does not answer.
        """
        async with self._reaching:
            if self.guest.closed.is_set() and self.machine.alive:
                try:
                    self.guest = await own(self.owned, connect(self.machine.open_channel()))
                except RestoreFailed as error:
                    raise Unavailable(f"the guest of the sandbox {self.id} does not answer") from error
            return self.guest

    async def aclose(self) -> None:
        """End the machine and remove what it wrote. Idempotent, and not cut short by cancellation."""
        await shielded(self.owned.aclose())


class Live:
    """Incarnations by sandbox id, and one lock per sandbox for the verbs that begin or end one."""

    def __init__(self) -> None:
        self._incarnations: dict[SandboxId, Incarnation] = {}
        self._locks = KeyedLocks[SandboxId]()

    def __len__(self) -> int:
        return len(self._incarnations)

    def all(self) -> list[Incarnation]:
        """Return every incarnation, those whose machine has died included, oldest first."""
        return list(self._incarnations.values())

    def find(self, sandbox: SandboxId) -> Incarnation | None:
        """Return a sandbox's incarnation, dead or alive, or None."""
        return self._incarnations.get(sandbox)

    def known(self, sandbox: SandboxId) -> Incarnation:
        """Return a sandbox's incarnation, dead or alive. Raises NotFound if there is none here."""
        found = self.find(sandbox)
        if found is None:
            raise NotFound(f"the sandbox {sandbox} does not live on this host")
        return found

    def get(self, sandbox: SandboxId) -> Incarnation:
        """Return a living incarnation. Raises NotFound if there is none here, SandboxLost if its machine has died."""
        found = self.known(sandbox)
        if not found.machine.alive:
            raise SandboxLost(f"the machine of the sandbox {sandbox} has ended: {found.machine.end}")
        return found

    def add(self, incarnation: Incarnation) -> None:
        """Enter a new incarnation; the caller holds the sandbox's lock."""
        self._incarnations[incarnation.id] = incarnation

    def take(self, sandbox: SandboxId) -> Incarnation | None:
        """Remove and return an incarnation, or None; the caller holds the sandbox's lock and closes what it got."""
        return self._incarnations.pop(sandbox, None)

    def lock(self, sandbox: SandboxId) -> AbstractAsyncContextManager[None]:
        """Hold the sandbox's lock while the block runs."""
        return self._locks.hold(sandbox)
