"""The suite that every network passes.

A network's test module subclasses `NetworkContract` and gives it a fixture `rig`: what makes networks, each as another
program has it that comes after the one before.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass

import pytest

from torpor.errors import RestoreFailed
from torpor.model.network import NO_NETWORK, Egress, Mode
from torpor.network.contract import Network

ALLOW = Egress(Mode.ALLOW, ("20.0.9.0/24",), ("*.example.com", "example.org"))


@dataclass(frozen=True)
class NetworkRig:
    """`opened` is a network while its block lasts; `there` tells which slots there are, whoever made them."""

    opened: Callable[[], AbstractAsyncContextManager[Network]]
    there: Callable[[], Collection[str]]


class NetworkContract:
    """The promises of `torpor.network.contract`, one test each."""

    async def test_a_slot_has_a_name_of_its_own_a_tap_and_the_guest_s_address(self, rig: NetworkRig) -> None:
        async with rig.opened() as network:
            one, other = await network.take(), await network.take()
            assert one.name
            assert one.name != other.name
            assert {one.name, other.name} <= set(rig.there())
            assert one.guest_ip == other.guest_ip
            assert one.guest_ip is not None
            assert one.egress == Egress()
            taps = [one.open_tap(), other.open_tap()]
            for tap in taps:
                assert tap is not None
                os.close(tap)
            await one.aclose()
            await other.aclose()

    async def test_a_policy_is_changed_before_and_after_the_gate_is_opened(self, rig: NetworkRig) -> None:
        async with rig.opened() as network:
            slot = await network.take()
            await slot.change(ALLOW)
            assert slot.egress == ALLOW
            slot.open_gate()
            slot.open_gate()
            await slot.change(NO_NETWORK)
            await slot.change(NO_NETWORK)
            assert slot.egress == NO_NETWORK
            assert isinstance(await slot.denied(), list)
            await slot.aclose()

    async def test_what_is_given_up_is_gone_and_giving_up_twice_is_fine(self, rig: NetworkRig) -> None:
        async with rig.opened() as network:
            slot = await network.take()
            slot.open_gate()
            await slot.aclose()
            await slot.aclose()
            await network.settled()
            assert slot.name not in rig.there()
        assert list(rig.there()) == []

    async def test_slots_are_taken_and_given_up_side_by_side(self, rig: NetworkRig) -> None:
        async with rig.opened() as network:
            slots = await asyncio.gather(*(network.take() for _ in range(6)))
            assert len({slot.name for slot in slots}) == 6
            await asyncio.gather(*(slot.aclose() for slot in slots))
        assert list(rig.there()) == []

    async def test_a_take_that_is_cut_short_leaves_nothing(self, rig: NetworkRig) -> None:
        async with rig.opened() as network:
            for turns in range(4):
                taking = asyncio.ensure_future(network.take())
                for _ in range(turns):
                    await asyncio.sleep(0)
                taking.cancel()
                with suppress(asyncio.CancelledError):
                    await (await taking).aclose()
        assert list(rig.there()) == []

    async def test_a_slot_outlives_its_program_and_is_taken_over_with_its_policy(self, rig: NetworkRig) -> None:
        async with rig.opened() as network:
            slot = await network.take()
            await slot.change(ALLOW)
            slot.open_gate()
            await slot.leave()
            await slot.leave()
        assert list(rig.there()) == [slot.name]
        async with rig.opened() as network:
            await network.sweep({slot.name})
            again = await network.adopt(slot.name, ALLOW)
            assert (again.name, again.egress, again.guest_ip) == (slot.name, ALLOW, slot.guest_ip)
            await again.change(Egress())
            await again.aclose()
        assert list(rig.there()) == []

    async def test_what_nobody_names_is_swept_and_the_rest_stays(self, rig: NetworkRig) -> None:
        async with rig.opened() as network:
            kept, swept = await network.take(), await network.take()
            await kept.leave()
            await swept.leave()
        async with rig.opened() as network:
            await network.sweep({kept.name, "nothing-of-that-name"})
            assert kept.name in rig.there()
            assert swept.name not in rig.there()
            await network.discard(kept.name)
            await network.discard(kept.name)
        assert list(rig.there()) == []

    async def test_a_slot_that_is_gone_leads_nowhere(self, rig: NetworkRig) -> None:
        async with rig.opened() as network:
            slot = await network.adopt("torpor-000000-0000", ALLOW)
            assert (slot.name, slot.guest_ip, slot.open_tap()) == ("", None, None)
            await slot.change(ALLOW)
            slot.open_gate()
            await slot.aclose()

    async def test_a_tap_is_opened_once_at_a_time(self, rig: NetworkRig) -> None:
        async with rig.opened() as network:
            slot = await network.take()
            first = slot.open_tap()
            assert first is not None
            with pytest.raises(RestoreFailed):
                slot.open_tap()
            os.close(first)
            second = slot.open_tap()
            assert second is not None
            os.close(second)
            await slot.aclose()
