"""What every store keeps of volumes, and of who has them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from store_records import HERE, NOON, made, opened, shot
from torpor.control.store.contract import Store
from torpor.errors import Conflict
from torpor.model.capacity import MIB
from torpor.model.ids import VolumeId, WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.volume import Attachment, Volume

DATA = Volume(VolumeId("vol-0000000000000001"), HERE, "data", 64, NOON)
HAS = Attachment(DATA.id, DATA.name, "/data", DATA.size_mb)


@pytest.fixture(params=["sql", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(request.param, tmp_path) as store:
        yield store


async def test_a_volume_is_found_by_its_name_in_its_workspace(store: Store) -> None:
    other = replace(DATA, id=VolumeId("vol-0000000000000002"), workspace=WorkspaceId("other"))
    more = replace(DATA, id=VolumeId("vol-0000000000000003"), name="cache", ready=True)
    for each in (DATA, other, more):
        await store.add_volume(each)
    assert await store.volume(HERE, "data") == DATA
    assert await store.volume(HERE, "others") is None
    assert await store.volumes(HERE) == [more, DATA]
    assert {each.id for each in await store.every_volume()} == {DATA.id, other.id, more.id}


async def test_a_name_is_taken_until_its_volume_is_removed(store: Store) -> None:
    await store.add_volume(DATA)
    again = replace(DATA, id=VolumeId("vol-0000000000000004"))
    with pytest.raises(Conflict, match="'data'"):
        await store.add_volume(again)
    assert await store.volumes(HERE) == [DATA]
    await store.remove_volume(DATA.id)
    await store.remove_volume(DATA.id)
    await store.add_volume(again)
    assert await store.volume(HERE, "data") == again


async def test_a_volume_is_marked_ready_and_not_ready(store: Store) -> None:
    await store.add_volume(DATA)
    for ready in (True, False):
        await store.mark_volume(DATA.id, ready=ready)
        assert await store.volume(HERE, "data") == replace(DATA, ready=ready)
    await store.mark_volume(VolumeId("vol-none"), ready=True)


async def test_living_sandboxes_are_found_that_have_volumes(store: Store) -> None:
    has, had, has_none = made(1, volumes=(HAS,)), made(2, volumes=(HAS,), state=State.DELETING), made(3)
    elsewhere = made(4, volumes=(HAS,), workspace=WorkspaceId("other"))
    for each in (has, had, has_none, elsewhere):
        await store.add(each)
    assert await store.get(has.id) == has
    assert {each.id for each in await store.with_volumes(HERE)} == {has.id, had.id}
    await store.move(had.id, {State.DELETING}, State.DELETED, NOON)
    assert await store.with_volumes(HERE) == [has]


async def test_a_snapshot_keeps_which_volumes_its_sandbox_had(store: Store) -> None:
    taken = shot(1, volumes=(HAS, replace(HAS, path="/copy", is_copy=True)))
    await store.add_snapshot(taken)
    assert await store.snapshot(taken.id) == taken


async def test_volumes_count_ready_or_not(store: Store) -> None:
    await store.add_volume(DATA)
    await store.add_volume(replace(DATA, id=VolumeId("vol-0000000000000005"), name="more", ready=True))
    held = await store.holdings(HERE)
    assert (held.volumes, held.volume_bytes) == (2, 2 * DATA.size_mb * MIB)
    assert (await store.holdings(WorkspaceId("other"))).volumes == 0
