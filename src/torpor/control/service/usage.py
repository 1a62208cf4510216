"""Usage: what sandboxes used and what that cost, from the ledger; and how they stand at this moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from torpor.control.service.cursors import cursor_after
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned
from torpor.control.store.contract import Account, AccountListing, Position
from torpor.errors import InvalidRequest, NotFound
from torpor.model.ids import WorkspaceId, is_sandbox_id
from torpor.model.sandbox import Sandbox
from torpor.model.usage import Usage, summed, total
from torpor.wire import host

# Sandboxes whose ledgers are looked at at once, and intervals that are many for one of them.
_AT_ONCE = 50
_MANY = 500


@dataclass(frozen=True, slots=True)
class Span:
    """The time that is asked about; None: from the beginning, until now."""

    since: datetime | None = None
    until: datetime | None = None

    def checked(self) -> Span:
        """Return it. Raises InvalidRequest if it ends before it begins."""
        if self.since is not None and self.until is not None and self.until < self.since:
            raise InvalidRequest("until has to be after since")
        return self


@dataclass(frozen=True, slots=True)
class Spent:
    """What was used from `since` to `until`."""

    since: datetime
    until: datetime
    usage: Usage


@dataclass(frozen=True, slots=True)
class SandboxSpent:
    """What one sandbox used, in the part of the span in which it was there."""

    account: Account
    spent: Spent


@dataclass(frozen=True, slots=True)
class ReportListing:
    """Which sandboxes of a workspace to report: those with all of `metadata` that were there in a span of time.

    `limit`, `after`: which of them to name one by one, the newest first.
    """

    workspace: WorkspaceId
    metadata: Mapping[str, str] = field(default_factory=dict)
    span: Span = field(default_factory=Span)
    limit: int = 1000
    after: Position | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What each of some sandboxes used, the newest first, and the sum of all. `next_cursor`: what asks for the rest."""

    total: Spent
    each: list[SandboxSpent]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Live:
    """How a sandbox stands: its record, and what the host says of its usage; `in_flight`: the calls that use it."""

    sandbox: Sandbox
    usage: host.Usage
    in_flight: int


async def sandbox_usage(plane: Plane, owned: Owned, span: Span) -> SandboxSpent:
    """Return what one sandbox used, also a deleted one that is still remembered. Raises NotFound."""
    span.checked()
    accounts: list[Account] = []
    if is_sandbox_id(owned.id):
        accounts = await plane.store.accounts(AccountListing(owned.workspace, sandbox=owned.id))
    if not accounts:
        raise NotFound(f"there is no sandbox {owned.id}")
    return await _spent(plane, accounts[0], span, plane.clock.now())


async def report(plane: Plane, listing: ReportListing) -> Report:
    """Return what all sandboxes used that are asked for, and one by one a page of them.

    However many there are, a few of them are looked at at a time, and other calls have their turn in between.
    """
    span, now = listing.span.checked(), plane.clock.now()
    asked = AccountListing(listing.workspace, metadata=listing.metadata, since=span.since, until=span.until)
    until = _latest(span.until, now)
    since, used, is_more = span.since or until, Usage(), False
    each: list[SandboxSpent] = []
    while accounts := await plane.store.accounts(replace(asked, limit=_AT_ONCE)):
        found = [await _spent(plane, account, span, now) for account in accounts]
        used = total([used, *(one.spent.usage for one in found)])
        since = min(since, *(one.spent.since for one in found))
        behind = [one for one in found if listing.after is None or _place(one) < _order(listing.after)]
        is_more = is_more or len(each) + len(behind) > listing.limit
        each += behind[: listing.limit - len(each)]
        last = accounts[-1].sandbox
        asked = replace(asked, after=Position(last.created_at, last.id))
    cursor = cursor_after(each[-1].account.sandbox) if is_more else None
    return Report(Spent(min(since, until), until, used), each, cursor)


def _place(one: SandboxSpent) -> tuple[datetime, str]:
    return one.account.sandbox.created_at, one.account.sandbox.id


def _order(position: Position) -> tuple[datetime, str]:
    return position.created_at, position.id


async def live(plane: Plane, workspace: WorkspaceId) -> list[Live]:
    """Return how all living sandboxes of a workspace stand, the newest first. Raises HostUnreachable."""
    found = await plane.host.incarnations()
    living = [sandbox for sandbox in await plane.store.living() if sandbox.workspace == workspace]
    living.sort(key=lambda one: (one.created_at, one.id), reverse=True)
    return [_live(plane, sandbox, found.get(sandbox.id)) for sandbox in living]


def _live(plane: Plane, sandbox: Sandbox, found: host.Incarnation | None) -> Live:
    usage = host.Usage() if found is None else found.usage
    return Live(sandbox, usage, plane.activity.in_flight(sandbox.id))


async def _spent(plane: Plane, account: Account, span: Span, now: datetime) -> SandboxSpent:
    sandbox = account.sandbox
    until = _latest(span.until, now, account.deleted_at)
    since = sandbox.created_at if span.since is None else max(span.since, sandbox.created_at)
    rate = plane.prices.rate(sandbox.cpu, sandbox.memory_mb)
    if len(account.intervals) > _MANY:  # no reason to keep other calls waiting
        usage = await asyncio.to_thread(summed, account.intervals, rate, now, span.since, span.until)
    else:
        usage = summed(account.intervals, rate, now, span.since, span.until)
    return SandboxSpent(account, Spent(min(since, until), until, usage))


def _latest(*ends: datetime | None) -> datetime:
    return min(end for end in ends if end is not None)
