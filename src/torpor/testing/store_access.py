"""The keys and the audit log of the store in memory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime

from torpor.control.store.access import (
    MOST_KEYS,
    MOST_KEYS_OVER,
    AuditBounds,
    AuditListing,
    KeyClaim,
    other_key_request,
    too_many_keys,
)
from torpor.model.access import AuditEntry, Key, NewAuditEntry
from torpor.model.ids import WorkspaceId


class MemoryAccess:
    """This part of a store in memory. Each call gives way once, as a real store does."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: dict[str, Key] = {}
        self._key_claims: dict[str, tuple[str, str]] = {}
        self._audit: list[AuditEntry] = []
        self._audit_numbers = itertools.count(1)

    async def add_key(self, key: Key, now: datetime, claim: KeyClaim | None = None) -> Key:
        await asyncio.sleep(0)
        if claim is not None and (held := self._key_claims.get(claim.name)) is not None and held[1] in self._keys:
            if held[0] != claim.digest:
                raise other_key_request(claim, self._keys[held[1]])
            return self._keys[held[1]]
        mine = self._keys_of(key.workspace)
        if sum(not one.is_over(now) for one in mine) >= MOST_KEYS:
            raise too_many_keys(key.workspace)
        for old in [one for one in mine if one.is_over(now)][MOST_KEYS_OVER:]:
            del self._keys[old.id]
        self._keys[key.id] = key
        if claim is not None:
            self._key_claims[claim.name] = (claim.digest, key.id)
        return key

    async def key_of(self, digest: str) -> Key | None:
        await asyncio.sleep(0)
        return next((key for key in self._keys.values() if key.digest == digest), None)

    async def key(self, key_id: str) -> Key | None:
        await asyncio.sleep(0)
        return self._keys.get(key_id)

    async def keys(self, workspace: WorkspaceId) -> list[Key]:
        await asyncio.sleep(0)
        return self._keys_of(workspace)

    async def revoke_key(self, key_id: str, at: datetime) -> Key | None:
        await asyncio.sleep(0)
        key = self._keys.get(key_id)
        if key is not None and key.revoked_at is None:
            self._keys[key_id] = replace(key, revoked_at=at)
        return self._keys.get(key_id)

    async def note_keys_used(self, used: Mapping[str, datetime]) -> None:
        await asyncio.sleep(0)
        for key_id in used.keys() & self._keys.keys():
            self._keys[key_id] = replace(self._keys[key_id], last_used_at=used[key_id])

    async def write_audit(self, entries: Sequence[NewAuditEntry], *, durably: bool) -> None:
        await asyncio.sleep(0)
        self._audit += [AuditEntry(**asdict(entry), number=next(self._audit_numbers)) for entry in entries]

    async def audit(self, listing: AuditListing) -> list[AuditEntry]:
        await asyncio.sleep(0)
        ordered = self._audit if listing.oldest_first else self._audit[::-1]
        return [entry for entry in ordered if _is_listed(entry, listing)][: listing.limit]

    async def trim_audit(self, bounds: AuditBounds) -> int:
        await asyncio.sleep(0)
        self._keys = {key_id: key for key_id, key in self._keys.items() if not key.is_over(bounds.keys)}
        kept = [entry for entry in self._audit if entry.at >= bounds.since(entry.kind)]
        for group in {(entry.workspace, entry.kind) for entry in kept}:
            mine = [entry for entry in kept if (entry.workspace, entry.kind) == group]
            too_many = {entry.number for entry in mine[: max(0, len(mine) - bounds.most(group[1]))]}
            kept = [entry for entry in kept if entry.number not in too_many]
        dropped = len(self._audit) - len(kept)
        self._audit = kept
        return dropped

    def _keys_of(self, workspace: WorkspaceId) -> list[Key]:
        mine = [key for key in self._keys.values() if key.workspace == workspace]
        return sorted(mine, key=lambda key: (key.created_at, key.id), reverse=True)


def _is_listed(entry: AuditEntry, listing: AuditListing) -> bool:
    if listing.after is not None:
        beyond = entry.number > listing.after if listing.oldest_first else entry.number < listing.after
        if not beyond:
            return False
    is_kind = not listing.kinds or entry.kind in listing.kinds
    return is_kind and listing.workspace in (None, entry.workspace)
