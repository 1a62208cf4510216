"""What every store keeps of labels that are changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from store_records import HERE, NOON, made, opened
from torpor.control.store.contract import AccountListing, Listing, Store
from torpor.model.ids import SandboxId
from torpor.model.lifecycle import State


@pytest.fixture(params=["sql", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(request.param, tmp_path) as store:
        yield store


async def test_new_labels_take_the_place_of_all_and_are_what_it_is_found_by(store: Store) -> None:
    new = made(1, metadata={"role": "child", "old": "1"}, expires_at=NOON, ttl_seconds=5)
    other = made(2, metadata={"role": "child"})
    for one in (new, other):
        await store.add(one)
    later = NOON + timedelta(seconds=60)
    changed = await store.relabel(new.id, {"role": "winner"}, later, 60)
    assert changed == replace(new, metadata={"role": "winner"}, expires_at=later, ttl_seconds=60)
    assert await store.page(Listing(HERE, metadata={"role": "winner"})) == [changed]
    assert await store.page(Listing(HERE, metadata={"old": "1"})) == []
    assert await store.page(Listing(HERE, metadata={"role": "child"})) == [other]
    (account,) = await store.accounts(AccountListing(HERE, metadata={"role": "winner"}))
    assert account.sandbox == changed
    assert await store.relabel(new.id, {}, None, None) == replace(new, metadata={}, expires_at=None, ttl_seconds=None)
    assert await store.relabel(SandboxId("sbx-none"), {}, None, None) is None


@pytest.mark.parametrize("state", [State.DELETING, State.DELETED])
async def test_what_is_going_is_not_relabelled(store: Store, state: State) -> None:
    gone = made(1, state=state, metadata={"a": "1"})
    await store.add(gone)
    assert await store.relabel(gone.id, {"a": "2"}, None, None) is None
    assert await store.get(gone.id) == gone
