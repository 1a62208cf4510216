"""The contract between Torpor and what connects sandboxes to the outside.

Words. A *slot* is a prepared place in the network for one machine: a tap of the shape that every guest was baked for,
and a firewall of its own around it. Its *gate* is closed at first: nothing at all passes. A *policy* (`Egress`) says
what passes once the gate is open. DNS questions of the guest are answered by the host agent, for as long as one lives.

After success a slot belongs to the caller, who calls `aclose` when the machine has ended, or `leave` if that is to
outlive the program. After failure nothing is left. A slot that nobody names any more is removed by the next `sweep`.

What a guest sends is hostile. Whatever the policy: no packet of it reaches this host, another sandbox, or an address
that is not public, unless the operator has opened that.

`torpor.testing.network_contract` is the suite that every implementation passes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from torpor.model.network import Egress


@dataclass(frozen=True, slots=True)
class Denied:
    """Packets, or questions for names, that were not let through: how many, and for which reason.

    `destination` is where to, such as "198.51.100.7 tcp/443", or the name that was asked for; None where only the
    number is kept. One packet counts once for its reason, and once more with its destination.
    """

    reason: str
    count: int
    destination: str | None = None


class Slot(Protocol):
    """A place in the network for one machine."""

    @property
    def name(self) -> str:
        """By which `Network.adopt` finds it again; empty for one that leads nowhere."""

    @property
    def egress(self) -> Egress:
        """The policy in force, or that will be once the gate is open."""

    @property
    def guest_ip(self) -> str | None:
        """The guest's own address; None in a slot that leads nowhere."""

    def open_tap(self) -> int | None:
        """Return a new descriptor of the tap, for a VMM, that the caller closes; None in a slot that leads nowhere.

        One at a time. Raises RestoreFailed.
        """

    async def change(self, egress: Egress) -> None:
        """Put another policy in force, at once and whole. What is under way and is not allowed by it is cut off.

        Raises Failed, and then the one before is in force.
        """

    def open_gate(self) -> None:
        """Let pass what the policy allows. Takes much less than a millisecond. Raises RestoreFailed. Idempotent."""

    async def denied(self) -> list[Denied]:
        """Return what was not let through so far. Raises Failed if that cannot be told."""

    async def leave(self) -> None:
        """Let go of the slot, which goes on as it is, but for names, until somebody adopts it. Idempotent."""

    async def aclose(self) -> None:
        """Close the gate, and give the slot up. Idempotent, and not cut short by cancellation."""


class Network(Protocol):
    """Makes slots."""

    @property
    def trouble(self) -> str:
        """Why sandboxes can reach nothing here, in one sentence; empty if they can."""

    async def take(self) -> Slot:
        """Return a new slot, with a closed gate and the policy `internet`; one that leads nowhere if there is trouble.

        Raises RestoreFailed if none can be made, NoCapacity if its range has no room for another one.
        """

    async def adopt(self, name: str, egress: Egress) -> Slot:
        """Take over the slot of a machine that has outlived its program, with its gate opened, and return it.

        It is one that leads nowhere where there is no such slot any more. Raises RestoreFailed if it cannot be taken
        over now, and then it is as before.
        """

    async def discard(self, name: str) -> None:
        """Remove a slot by its name; fine if there is none. Never fails: what is left is swept later."""

    async def sweep(self, keep: Collection[str]) -> None:
        """Remove all slots that an earlier program has left here, but those named. Never fails."""

    async def settled(self) -> None:
        """Return when every slot that was given up is gone, and those that are made ahead are there."""
