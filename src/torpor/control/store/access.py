"""What the control plane remembers of keys and of what was done with them: this part of the store's contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from torpor.errors import Conflict, QuotaExceeded
from torpor.model.access import AuditEntry, AuditKind, Key, NewAuditEntry
from torpor.model.ids import WorkspaceId

# Keys of one workspace that open something, and keys that are over and still listed.
MOST_KEYS = 1000
MOST_KEYS_OVER = 1000
# How long what is over is remembered, and how many entries of one workspace at most. docs/keys.md tells of them.
KEEP_KEYS = timedelta(days=90)
KEEP_CHANGES = timedelta(days=400)
KEEP_OTHERS = timedelta(days=30)
MOST_CHANGES = 1_000_000
MOST_OTHERS = 100_000


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """An idempotency key that a key was asked for with, and the digest of that request.

    `owner`: the id of the key that asked; another one's idempotency keys are others.
    """

    owner: str
    key: str
    digest: str

    @property
    def name(self) -> str:
        """What it is kept under."""
        return f"{self.owner}:{self.key}"


@dataclass(frozen=True, slots=True)
class AuditListing:
    """Which entries to list: at most `limit`, of one `workspace` or (None) of all, beyond the number `after`.

    The newest first, so that beyond is before; or with `oldest_first` the other way round. `kinds`: only these, if any
    are given.
    """

    workspace: WorkspaceId | None
    limit: int = 100
    after: int | None = None
    oldest_first: bool = False
    kinds: frozenset[AuditKind] = frozenset()


@dataclass(frozen=True, slots=True)
class AuditBounds:
    """What is kept: entries since these times, and at most so many of each workspace; keys that ended since `keys`."""

    keys: datetime
    changes: datetime
    others: datetime
    most_changes: int = MOST_CHANGES
    most_others: int = MOST_OTHERS

    def since(self, kind: AuditKind) -> datetime:
        """Return since when entries of a kind are kept."""
        return self.changes if kind is AuditKind.CHANGE else self.others

    def most(self, kind: AuditKind) -> int:
        """Return how many entries of a kind are kept of one workspace."""
        return self.most_changes if kind is AuditKind.CHANGE else self.most_others


def bounds_at(now: datetime) -> AuditBounds:
    """Return what is kept at a moment."""
    return AuditBounds(keys=now - KEEP_KEYS, changes=now - KEEP_CHANGES, others=now - KEEP_OTHERS)


def too_many_keys(workspace: WorkspaceId) -> QuotaExceeded:
    """Return the refusal of one key more than a workspace may have."""
    return QuotaExceeded(
        f"workspace {workspace} has {MOST_KEYS} keys, which is the limit", hint="revoke some with `torpor token revoke`"
    )


def other_key_request(claim: KeyClaim, holder: Key) -> Conflict:
    """Return the refusal of an idempotency key that came with another request before."""
    return Conflict(
        f"the idempotency key {claim.key!r} was used for another request, which made the key {holder.prefix}",
        hint="use a fresh idempotency key for each new request",
    )


class AccessStore(Protocol):
    """Keys and the audit log. What holds of every call of the store holds of these; see `contract`."""

    async def add_key(self, key: Key, now: datetime, claim: KeyClaim | None = None) -> Key:
        """Record a new key, with its claim, and return it; or return the earlier one that holds the claim.

        In the second case nothing is recorded. Of the keys of its workspace that are over, all but the newest
        MOST_KEYS_OVER are dropped. Raises Conflict if the claim is held with another digest, QuotaExceeded if MOST_KEYS
        keys of the workspace are not over.
        """

    async def key_of(self, digest: str) -> Key | None:
        """Return the key with this digest, over or not; None if there is none."""

    async def key(self, key_id: str) -> Key | None:
        """Return the key with this id, over or not; None if there is none."""

    async def keys(self, workspace: WorkspaceId) -> list[Key]:
        """Return the keys of a workspace, over or not, the newest first."""

    async def revoke_key(self, key_id: str, at: datetime) -> Key | None:
        """Revoke a key and return it; one that is revoked stays as it is. None if there is none."""

    async def note_keys_used(self, used: Mapping[str, datetime]) -> None:
        """Note when keys, by their ids, were used last. As durable as `note`."""

    async def write_audit(self, entries: Sequence[NewAuditEntry], *, durably: bool) -> None:
        """Append entries to the audit log. Without `durably` they outlive a crash of the program, as `note` says."""

    async def audit(self, listing: AuditListing) -> list[AuditEntry]:
        """Return a page of the audit log."""

    async def trim_audit(self, bounds: AuditBounds) -> int:
        """Drop entries and keys beyond the bounds, and return how many entries that were."""
