"""What every store keeps of networks and of secrets, whose values it is never given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from store_records import HERE, NOON, made, opened, shot
from torpor.control.store.contract import Facts, Listing, Store
from torpor.model.ids import SandboxId
from torpor.model.lifecycle import State
from torpor.model.network import NO_NETWORK, Egress, Mode


@pytest.fixture(params=["sql", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(request.param, tmp_path) as store:
        yield store


REACH = Egress(Mode.ALLOW, ("198.51.100.0/24",), ("code.example.com", "*.example.org"))


async def test_what_it_may_reach_and_the_names_of_its_secrets_are_kept(store: Store) -> None:
    new = made(1, network=REACH, guest_ip="198.51.100.2", secret_names=("A", "B"), has_own_secrets=True)
    await store.add(new)
    assert await store.get(new.id) == new
    for network in (NO_NETWORK, Egress(), REACH):
        expected = replace(new, network=network, guest_ip=None)
        assert await store.set_network(new.id, network, None) == expected
        assert await store.page(Listing(HERE)) == [expected]
    facts = Facts(guest_ip="198.51.100.3", secret_names=())
    moved = await store.move(new.id, {State.CREATING}, State.RUNNING, NOON, facts)
    assert moved == replace(new, state=State.RUNNING, guest_ip="198.51.100.3", secret_names=())
    assert await store.set_network(SandboxId("sbx-none"), REACH, None) is None


@pytest.mark.parametrize("state", [State.DELETING, State.DELETED])
async def test_what_it_may_reach_is_not_set_on_what_is_going(store: Store, state: State) -> None:
    await store.add(made(1, state=state))
    assert await store.set_network(made(1).id, REACH, None) is None
    assert await store.get(made(1).id) == made(1, state=state)


async def test_a_snapshot_keeps_what_its_sandbox_might_reach_and_the_names_of_its_secrets(store: Store) -> None:
    taken = shot(1, network=REACH, secret_names=("A",))
    await store.add_snapshot(taken)
    assert await store.snapshot(taken.id) == taken
