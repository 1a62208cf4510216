"""Keys and the audit log: the suite that every store passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from store_records import HERE, NOON, opened
from torpor.control.store import access
from torpor.control.store.access import AuditBounds, AuditListing, KeyClaim
from torpor.control.store.contract import Store
from torpor.errors import Conflict, QuotaExceeded
from torpor.model.access import AuditKind, Key, NewAuditEntry, Role
from torpor.model.ids import WorkspaceId

ELSEWHERE = WorkspaceId("elsewhere")
HOUR = timedelta(hours=1)


@pytest.fixture(params=["sql", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(request.param, tmp_path) as store:
        yield store


def key(number: int, **changes: object) -> Key:
    made = Key(
        id=f"key-{number:04d}",
        workspace=HERE,
        name=f"name {number}",
        prefix=f"tpr_{number:08d}",
        digest=f"{number:064x}",
        role=Role.MEMBER,
        created_at=NOON + timedelta(seconds=number),
        made_by="tpr_maker000",
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # the tests name fields


def entry(number: int, **changes: object) -> NewAuditEntry:
    made = NewAuditEntry(
        at=NOON + timedelta(seconds=number),
        kind=AuditKind.CHANGE,
        request_id=f"req-{number}",
        action="POST /v1/sandboxes",
        client="127.0.0.1",
        status=201,
        targets=(f"sbx-{number}",),
        workspace=HERE,
        key_id="key-1",
        key_prefix="tpr_aaaaaaaa",
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # the tests name fields


async def numbers(store: Store, listing: AuditListing) -> list[str]:
    return [one.request_id.removeprefix("req-") for one in await store.audit(listing)]


async def test_a_key_is_read_back_whole_and_found_by_its_digest_only(store: Store) -> None:
    whole = key(1, role=Role.ADMIN, expires_at=NOON + HOUR)
    assert await store.add_key(whole, NOON) == whole
    assert await store.key_of(whole.digest) == whole
    assert await store.key_of(whole.digest[:-1] + "f") is None
    assert await store.key(whole.id) == whole
    assert await store.key("key-none") is None
    assert await store.keys(HERE) == [whole]


async def test_keys_are_listed_by_workspace_the_newest_first(store: Store) -> None:
    for one in (key(1), key(3), key(2), key(4, workspace=ELSEWHERE)):
        await store.add_key(one, NOON)
    assert [one.id for one in await store.keys(HERE)] == ["key-0003", "key-0002", "key-0001"]
    assert [one.id for one in await store.keys(ELSEWHERE)] == ["key-0004"]
    assert await store.keys(WorkspaceId("nowhere")) == []


async def test_a_revoked_key_stays_revoked_at_the_time_of_the_first_call(store: Store) -> None:
    await store.add_key(key(1), NOON)
    revoked = await store.revoke_key(key(1).id, NOON + HOUR)
    assert revoked == key(1, revoked_at=NOON + HOUR)
    assert await store.revoke_key(key(1).id, NOON + 2 * HOUR) == revoked
    assert await store.key_of(key(1).digest) == revoked
    assert await store.revoke_key("key-none", NOON) is None


async def test_a_claim_makes_one_key_whoever_comes_first(store: Store) -> None:
    claim = KeyClaim("key-maker", "once", "digest")
    made = await asyncio.gather(*(store.add_key(key(number), NOON, claim) for number in (1, 2, 3)))
    assert len({one.id for one in made}) == 1
    assert await store.keys(HERE) == [made[0]]
    with pytest.raises(Conflict, match="another request"):
        await store.add_key(key(4), NOON, replace(claim, digest="other"))
    other = await store.add_key(key(5), NOON, replace(claim, owner="key-other"))
    assert other == key(5)


async def test_a_workspace_has_room_for_so_many_keys_and_those_that_are_over_do_not_count(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(monkeypatch, "MOST_KEYS", 2)
    await store.add_key(key(1, expires_at=NOON + HOUR), NOON)
    await store.add_key(key(2), NOON)
    with pytest.raises(QuotaExceeded, match="has 2 keys"):
        await store.add_key(key(3), NOON)
    await store.add_key(key(4, workspace=ELSEWHERE), NOON)
    await store.add_key(key(5), NOON + HOUR)
    await store.revoke_key(key(2).id, NOON + HOUR)
    await store.add_key(key(6), NOON + HOUR)
    assert {one.id[-1] for one in await store.keys(HERE)} == {"1", "2", "5", "6"}


async def test_of_keys_that_are_over_only_the_newest_are_remembered(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(monkeypatch, "MOST_KEYS_OVER", 1)
    for number in (1, 2, 3):
        await store.add_key(key(number), NOON)
        await store.revoke_key(key(number).id, NOON)
    await store.add_key(key(4), NOON)
    assert [one.id[-1] for one in await store.keys(HERE)] == ["4", "3"]


def limited(monkeypatch: pytest.MonkeyPatch, name: str, value: int) -> None:
    """Lower a limit where both stores have it from."""
    from torpor.control.store import access_sql
    from torpor.testing import store_access

    for module in (access, access_sql, store_access):
        monkeypatch.setattr(module, name, value)


async def test_the_time_of_the_last_use_is_noted(store: Store) -> None:
    await store.add_key(key(1), NOON)
    await store.add_key(key(2), NOON)
    await store.note_keys_used({key(1).id: NOON + HOUR, "key-none": NOON})
    await store.note_keys_used({})
    assert [one.last_used_at for one in await store.keys(HERE)] == [None, NOON + HOUR]


@pytest.mark.parametrize("durably", [True, False])
async def test_an_entry_is_read_back_whole(store: Store, durably: bool) -> None:
    whole = entry(1, targets=("sbx-1", "snp-2"), status=None)
    nobody = entry(2, workspace=None, key_id=None, key_prefix=None, kind=AuditKind.REFUSED, count=7)
    await store.write_audit([], durably=durably)
    await store.write_audit([whole, nobody], durably=durably)
    found = await store.audit(AuditListing(None, oldest_first=True))
    told = [NewAuditEntry(**{name: getattr(one, name) for name in NewAuditEntry.__dataclass_fields__}) for one in found]
    assert told == [whole, nobody]
    assert found[0].number < found[1].number


async def test_entries_are_paged_in_both_directions_of_one_workspace_or_of_all(store: Store) -> None:
    entries = [entry(1), entry(2, workspace=ELSEWHERE), entry(3), entry(4, kind=AuditKind.USE), entry(5)]
    await store.write_audit(entries, durably=True)
    assert await numbers(store, AuditListing(HERE)) == ["5", "4", "3", "1"]
    assert await numbers(store, AuditListing(None, oldest_first=True)) == ["1", "2", "3", "4", "5"]
    (_, last) = page = await store.audit(AuditListing(HERE, limit=2))
    assert [one.request_id for one in page] == ["req-5", "req-4"]
    assert await numbers(store, AuditListing(HERE, after=last.number)) == ["3", "1"]
    (first,) = await store.audit(AuditListing(HERE, limit=1, oldest_first=True))
    assert await numbers(store, AuditListing(HERE, after=first.number, oldest_first=True)) == ["3", "4", "5"]
    assert await numbers(store, AuditListing(HERE, kinds=frozenset({AuditKind.USE}))) == ["4"]


async def test_what_is_old_or_too_much_is_dropped_of_each_workspace_and_kind_by_itself(store: Store) -> None:
    uses = [entry(number, kind=AuditKind.USE) for number in range(10, 15)]
    others = [entry(20, kind=AuditKind.USE, workspace=ELSEWHERE), entry(21, workspace=None, kind=AuditKind.REFUSED)]
    await store.write_audit([entry(1), entry(2), *uses, *others], durably=True)
    bounds = AuditBounds(keys=NOON, changes=NOON + timedelta(seconds=2), others=NOON, most_changes=5, most_others=2)
    assert await store.trim_audit(bounds) == 4
    assert await numbers(store, AuditListing(None, oldest_first=True)) == ["2", "13", "14", "20", "21"]
    assert await store.trim_audit(bounds) == 0
    await store.write_audit([entry(30)], durably=True)
    assert (await store.audit(AuditListing(None, limit=1)))[0].number == 10  # no number is used twice


async def test_keys_that_ended_long_ago_are_dropped(store: Store) -> None:
    for one in (key(1), key(2, expires_at=NOON), key(3, expires_at=NOON + HOUR)):
        await store.add_key(one, NOON)
    await store.revoke_key(key(1).id, NOON - HOUR)
    await store.trim_audit(AuditBounds(keys=NOON, changes=NOON, others=NOON))
    assert [one.id for one in await store.keys(HERE)] == [key(3).id]
