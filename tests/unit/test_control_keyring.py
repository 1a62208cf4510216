"""The keyring: what it remembers is never more than the truth."""

from __future__ import annotations

import asyncio

import pytest

from torpor.control.service.keyring import Keyring, caller_of, digest_of
from torpor.errors import Failed, Unauthenticated
from torpor.model.access import Key, Role
from torpor.model.ids import WorkspaceId
from torpor.testing.clock import JumpClock
from torpor.testing.store import MemoryStore

PLAIN = "tpr_" + "p" * 43


class Slow(MemoryStore):
    """A store whose answers about keys can be held up after they were read."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.has_read, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()
        self.is_full = False

    async def key_of(self, digest: str) -> Key | None:
        self.asked += 1
        found = await super().key_of(digest)
        self.has_read.set()
        await self.may_answer.wait()
        return found

    async def key(self, key_id: str) -> Key | None:
        found = await super().key(key_id)
        self.has_read.set()
        await self.may_answer.wait()
        return found

    async def note_keys_used(self, used: object) -> None:
        if self.is_full:
            raise Failed("the disk is full")
        await super().note_keys_used(used)  # type: ignore[arg-type]  # it is passed on as it came


@pytest.fixture
def clock() -> JumpClock:
    return JumpClock()


@pytest.fixture
async def store(clock: JumpClock) -> Slow:
    made = Slow()
    key = Key("key-1", WorkspaceId("lab"), "a", PLAIN[:12], digest_of(PLAIN), Role.MEMBER, clock.now(), "tpr_maker000")
    await made.add_key(key, clock.now())
    return made


async def test_a_key_in_use_is_asked_for_once(store: Slow, clock: JumpClock) -> None:
    keyring = Keyring(store, clock)
    for _ in range(3):
        found = await keyring.find(digest_of(PLAIN))
        assert found is not None
        assert caller_of(found, clock.now()).workspace == "lab"
    assert store.asked == 1


async def test_what_is_not_known_is_not_remembered(store: Slow, clock: JumpClock) -> None:
    keyring = Keyring(store, clock)
    for number in range(2000):
        assert await keyring.find(digest_of(str(number))) is None
    assert len(keyring._known) == 0


async def test_a_key_that_is_revoked_while_it_is_looked_up_is_found_revoked(store: Slow, clock: JumpClock) -> None:
    keyring = Keyring(store, clock)
    store.may_answer.clear()
    finding = asyncio.create_task(keyring.find(digest_of(PLAIN)))
    await store.has_read.wait()  # it has read a key that is good
    await keyring.revoke("key-1")
    store.may_answer.set()
    found = await finding
    assert found is not None
    with pytest.raises(Unauthenticated, match="was revoked"):
        caller_of(found, clock.now())


async def test_a_key_that_is_looked_up_by_its_id_is_true_too(store: Slow, clock: JumpClock) -> None:
    keyring = Keyring(store, clock)
    store.may_answer.clear()
    finding = asyncio.create_task(keyring.find_by_id("key-1"))
    await store.has_read.wait()
    await keyring.revoke("key-1")
    store.may_answer.set()
    found = await finding
    assert found is not None
    assert found.revoked_at is not None
    assert await keyring.find_by_id("key-none") is None


async def test_who_holds_a_key_is_told_of_its_end_and_nobody_else(store: Slow, clock: JumpClock) -> None:
    keyring = Keyring(store, clock)
    found = await keyring.find(digest_of(PLAIN))
    assert found is not None
    caller = caller_of(found, clock.now())
    with keyring.holding(caller) as first, keyring.holding(caller) as second:
        assert not first.is_set()
        await keyring.revoke("key-none")
        assert not first.is_set()
        await keyring.revoke("key-1")
        assert first.is_set()
        assert second.is_set()
    assert keyring._held == {}


async def test_uses_that_cannot_be_written_are_written_with_the_next(store: Slow, clock: JumpClock) -> None:
    keyring = Keyring(store, clock)
    found = await keyring.find(digest_of(PLAIN))
    assert found is not None
    keyring.used(found)
    store.is_full = True
    await keyring.flush()
    store.is_full = False
    await keyring.aclose()
    assert (await store.keys(WorkspaceId("lab")))[0].last_used_at == clock.now()


async def test_a_key_in_use_stays_known_when_its_use_is_written(store: Slow, clock: JumpClock) -> None:
    keyring = Keyring(store, clock)
    found = await keyring.find(digest_of(PLAIN))
    assert found is not None
    keyring.used(found)
    await keyring.flush()
    assert keyring.remembers(digest_of(PLAIN))
    again = await keyring.find(digest_of(PLAIN))
    assert again is not None
    assert again.last_used_at == clock.now()
    assert store.asked == 1
