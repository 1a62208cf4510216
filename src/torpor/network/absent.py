"""No network: sandboxes have their own loopback, and nothing else."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from torpor.model.network import NO_NETWORK, Egress
from torpor.network.contract import Denied, Slot


@dataclass(slots=True)
class Nowhere:
    """A slot that leads nowhere, whatever is asked of it: for a guest without a card, or a host without a network."""

    name: str = field(default="", init=False)
    egress: Egress = field(default=NO_NETWORK, init=False)
    guest_ip: str | None = field(default=None, init=False)

    def open_tap(self) -> int | None:
        return None

    async def change(self, egress: Egress) -> None:
        """Nothing passes, so nothing more can be let through."""

    def open_gate(self) -> None:
        """There is none."""

    async def denied(self) -> list[Denied]:
        return []

    async def leave(self) -> None:
        """There is nothing to let go of."""

    async def aclose(self) -> None:
        """There is nothing to give up."""


@dataclass(frozen=True, slots=True)
class NoNetwork:
    """Makes slots that lead nowhere. `trouble` says why."""

    trouble: str = "this host agent was started without a network"

    async def take(self) -> Slot:
        return Nowhere()

    async def adopt(self, name: str, egress: Egress) -> Slot:
        del name, egress
        return Nowhere()

    async def discard(self, name: str) -> None:
        """There is none."""

    async def sweep(self, keep: Collection[str]) -> None:
        """There are none."""

    async def settled(self) -> None:
        """There is nothing that could change."""
