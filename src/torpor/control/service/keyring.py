"""The keyring: whose key it is that a request came with, and what opens nothing any more."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import structlog

from torpor.control.store.access import AccessStore
from torpor.errors import TorporError, Unauthenticated
from torpor.kit.clock import Clock
from torpor.kit.shielded import shielded
from torpor.model.access import Caller, Key

_log = structlog.get_logger("torpor.control")

# Keys that are known without asking the store.
_REMEMBERED = 1024
# The time of the last use is for people, and need not be exact.
_USE_STEP = timedelta(minutes=10)
_NOTED_EVERY_S = 60.0


def digest_of(key: str) -> str:
    """Return what is kept of a key: the SHA-256 of its characters, in hexadecimal."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


@dataclass(slots=True)
class Held:
    """The requests that a key is being used for; `over` is set when it opens nothing any more."""

    over: asyncio.Event = field(default_factory=asyncio.Event)
    requests: int = 0


class Keyring:
    """Finds keys by their digests, remembers those in use, and notes when they were used.

    It is in memory, and the only way to revoke a key: from the moment `revoke` returns, and after every restart, the
    key opens nothing.
    """

    def __init__(self, store: AccessStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: OrderedDict[str, Key] = OrderedDict()
        self._changes = 0
        self._held: dict[str, Held] = {}
        self._used: dict[str, datetime] = {}

    def remembers(self, digest: str) -> bool:
        """Tell whether a key is known without asking the store."""
        return digest in self._known

    async def find(self, digest: str) -> Key | None:
        """Return the key with a digest, over or not. What it returns is true at that moment, without an await after."""
        while (known := self._known.get(digest)) is None:
            seen = self._changes
            found = await self._store.key_of(digest)
            # The database's comparison took its time, which tells nothing of the key: what was compared is its hash.
            if found is None or not hmac.compare_digest(found.digest, digest):
                return None
            if seen == self._changes:  # else it may have been revoked while we looked
                self._remember(found)
                return found
        self._known.move_to_end(digest)
        return known

    async def find_by_id(self, key_id: str) -> Key | None:
        """Return the key with an id, over or not, as `find` does."""
        while True:
            seen = self._changes
            found = await self._store.key(key_id)
            if seen == self._changes:
                return found

    @contextmanager
    def holding(self, key: Caller) -> Iterator[asyncio.Event]:
        """Count a request as one of a key's while the block runs, and give what is set when the key is revoked."""
        held = self._held.setdefault(key.key_id, Held())
        held.requests += 1
        try:
            yield held.over
        finally:
            held.requests -= 1
            if not held.requests and self._held.get(key.key_id) is held:
                del self._held[key.key_id]

    async def revoke(self, key_id: str) -> Key | None:
        """Revoke a key for good and return it, None if there is none. The requests that it is used for are told."""
        revoked = await self._store.revoke_key(key_id, self._clock.now())
        self._changes += 1
        if revoked is not None:
            self._known.pop(revoked.digest, None)
            if (held := self._held.pop(key_id, None)) is not None:
                held.over.set()
        return revoked

    def used(self, key: Key) -> None:
        """Take in that a key was used just now."""
        now, last = self._clock.now(), self._used.get(key.id, key.last_used_at)
        if last is None or now - last >= _USE_STEP:
            self._used[key.id] = now

    async def note_uses(self) -> None:
        """Write down when keys were used, for ever. Ends by cancellation."""
        while True:
            await self._clock.sleep(_NOTED_EVERY_S)
            await self.flush()

    async def flush(self) -> None:
        """Write down when keys were used. What cannot be written is tried again with the next."""
        if not (used := dict(self._used)):
            return
        try:
            await shielded(self._store.note_keys_used(used))
        except TorporError as error:
            _log.warning("uses of keys not written", keys=len(used), error=error.message)
            return
        for key_id, at in used.items():
            if self._used.get(key_id) == at:
                del self._used[key_id]
        # What is remembered knows of it, and stays: see `Guard.caller`, which asks what is.
        for digest, key in list(self._known.items()):
            if key.id in used:
                self._known[digest] = replace(key, last_used_at=used[key.id])

    async def aclose(self) -> None:
        """Write down when keys were used."""
        await self.flush()

    def _remember(self, key: Key) -> None:
        self._known[key.digest] = key
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)


def caller_of(key: Key, now: datetime) -> Caller:
    """Return whom a key speaks for. Raises Unauthenticated for one that is over: only who has it can be told so."""
    hint = "ask for another key"
    if key.revoked_at is not None:
        raise Unauthenticated(f"the API key {key.prefix}... was revoked", hint=hint)
    if key.is_over(now):
        raise Unauthenticated(f"the API key {key.prefix}... has expired", hint=hint)
    return Caller(key.id, key.prefix, key.workspace, key.role, key.expires_at)
