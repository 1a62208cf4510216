"""A slot in the kernel: a network namespace with a tap, a firewall, and a link to the host."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from torpor.errors import Failed, RestoreFailed, TorporError
from torpor.kit.shielded import shielded
from torpor.model.network import Egress, Mode
from torpor.network import netns
from torpor.network.addresses import GUEST
from torpor.network.config import NetworkConfig
from torpor.network.contract import Denied
from torpor.network.forwarder import Forwarder
from torpor.network.making import Sockets
from torpor.network.names import entry_mark
from torpor.network.programs import nft, nft_told
from torpor.network.rules import COUNTER, MAX_PINNED, PINNED, TABLE, TAP, Pin, pin_rules, policy_rules
from torpor.network.tap import attach, switch
from torpor.network.upstream import Upstream

_MOST_JUDGEMENTS = 1 << 31


def new_judgement() -> int:
    """Return a number for a policy that comes into force now, which no earlier one of the same slot had."""
    return 1 + time.monotonic_ns() // 1_000_000 % (_MOST_JUDGEMENTS - 1)


class KernelSlot:
    """A slot that is there. `give_up` is called once, when nobody needs it any more."""

    def __init__(
        self, name: str, sockets: Sockets, egress: Egress, config: NetworkConfig, give_up: Callable[[str], None]
    ) -> None:
        self.name = name
        self._sockets, self._egress, self._config, self._give_up = sockets, egress, config, give_up
        self._changing = asyncio.Lock()
        self._forwarder: Forwarder | None = None
        self._closed = False
        self._used = False  # whether its gate was ever opened, so that there may be something to be kept

    def __repr__(self) -> str:
        return f"<KernelSlot {self.name} {self._egress.mode.value}>"

    @property
    def egress(self) -> Egress:
        return self._egress

    @property
    def guest_ip(self) -> str | None:
        return str(GUEST.ip)

    def serve_names(self, upstream: Upstream) -> None:
        """Begin to answer the guest's questions for names."""
        self._forwarder = Forwarder(upstream, self._pin, self._config.private)
        self._forwarder.egress = self._egress
        self._forwarder.serve(self._sockets.udp, self._sockets.tcp)

    def open_tap(self) -> int | None:
        try:
            return netns.within(self.name, lambda: attach(TAP))
        except (Failed, OSError) as error:
            raise RestoreFailed(f"the network card has nothing to be connected to: {error}") from error

    async def change(self, egress: Egress) -> None:
        if egress != self._egress:
            await shielded(self._put_in_force(egress))

    async def _put_in_force(self, egress: Egress) -> None:
        async with self._changing:
            await asyncio.to_thread(self._load, egress)
            self._egress = egress
            if self._forwarder is not None:
                self._forwarder.egress = egress

    def _load(self, egress: Egress) -> None:
        """Change the firewall. What names have brought stays, as far as they are allowed still."""

        def work() -> None:
            listed = nft_told("set", "inet", TABLE, PINNED) if egress.names and self._used else ()
            pins = _still_allowed(listed, egress)
            nft(policy_rules(self._config, egress, new_judgement(), pins))

        try:
            netns.within(self.name, work)
        except (TorporError, OSError) as error:
            raise Failed(f"what the sandbox may reach could not be changed: {error}") from error

    async def put_in_force_again(self) -> None:
        """Load the policy anew, whatever an earlier program had loaded. Raises Failed."""
        self._used = True
        await shielded(self._put_in_force(self._egress))

    async def _pin(self, pins: list[Pin]) -> None:
        """Let addresses pass that an answer is about to bring. Raises Failed, and then none of them passes."""
        async with self._changing:  # not while the policy that they were found by becomes another one
            marks = {entry_mark(entry) for entry in self._egress.names}
            if self._egress.mode is not Mode.ALLOW or not all(pin.entry in marks for pin in pins):
                raise Failed("what the sandbox may reach was changed meanwhile")
            await asyncio.to_thread(netns.within, self.name, lambda: nft(pin_rules(pins)))

    def open_gate(self) -> None:
        self._used = True
        try:
            switch(self._sockets.control, TAP, "up")
        except OSError as error:
            raise RestoreFailed(f"the way into the network could not be opened: {error}") from error

    async def denied(self) -> list[Denied]:
        listed = await asyncio.to_thread(netns.within, self.name, lambda: nft_told("ruleset"))
        refused = [] if self._forwarder is None else self._forwarder.denied()
        return [*_told(listed), *refused]

    async def leave(self) -> None:
        await shielded(self._let_go())

    async def _let_go(self) -> None:
        self._closed = True
        if self._forwarder is not None:
            await self._forwarder.aclose()
        self._sockets.close()

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        with suppress(OSError):  # it is gone, with its namespace
            switch(self._sockets.control, TAP, "down")
        await shielded(self._let_go())
        self._give_up(self.name)


def _still_allowed(listed: Iterable[dict[str, Any]], egress: Egress) -> list[Pin]:
    """Return what is pinned by names that a policy has too."""
    marks = {entry_mark(entry) for entry in egress.names}
    found: list[Pin] = []
    for item in listed:
        for each in item.get("set", {}).get("elem", ()):
            element = each.get("elem", {}) if isinstance(each, dict) else {}
            if element.get("comment") in marks and int(element.get("expires", 0)) > 0:
                found.append(Pin(element["val"], int(element["expires"]), element["comment"]))
    return found[:MAX_PINNED]


def _told(listed: Iterable[dict[str, Any]]) -> list[Denied]:
    """Return what the firewall has counted: by reason, and then by destination, the most frequent first."""
    reasons: list[Denied] = []
    destinations: list[Denied] = []
    for item in listed:
        counter, found = item.get("counter", {}), item.get("set", {})
        if str(counter.get("name", "")).startswith(COUNTER) and counter["packets"]:
            reasons.append(Denied(counter["name"].removeprefix(COUNTER), counter["packets"]))
        if found.get("name") in ("flows", "hosts"):
            destinations += [_destination(each["elem"]) for each in found.get("elem", ())]
    return reasons + sorted(destinations, key=lambda each: -each.count)


def _destination(element: dict[str, Any]) -> Denied:
    address, *rest = element["val"]["concat"]
    return Denied("destination", element["counter"]["packets"], f"{address} {'/'.join(map(str, rest))}")
