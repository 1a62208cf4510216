"""Usage: what sandboxes used and what that cost, from the ledger; and how they stand at this moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned
from torpor.control.store.contract import Account, AccountListing
from torpor.errors import InvalidRequest, NotFound
from torpor.model.ids import WorkspaceId, is_sandbox_id
from torpor.model.sandbox import Sandbox
from torpor.model.usage import Usage, summed, total
from torpor.wire import host


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
class Report:
    """What each of some sandboxes used, the newest first, and their sum."""

    total: Spent
    each: list[SandboxSpent]


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
    return _spent(plane, accounts[0], span, plane.clock.now())


async def report(plane: Plane, workspace: WorkspaceId, metadata: Mapping[str, str], span: Span) -> Report:
    """Return what all sandboxes with all of `metadata` used that were there in a span of time."""
    span.checked()
    now = plane.clock.now()
    listing = AccountListing(workspace, metadata=metadata, since=span.since, until=span.until)
    each: list[SandboxSpent] = []
    for account in await plane.store.accounts(listing):
        each.append(_spent(plane, account, span, now))
        await asyncio.sleep(0)  # many long ledgers are no reason to keep other calls waiting
    until = _latest(span.until, now)
    since = span.since or min((one.spent.since for one in each), default=until)
    return Report(Spent(min(since, until), until, total(one.spent.usage for one in each)), each)


async def live(plane: Plane, workspace: WorkspaceId) -> list[Live]:
    """Return how all living sandboxes of a workspace stand, the newest first. Raises HostUnreachable."""
    found = await plane.host.incarnations()
    living = [sandbox for sandbox in await plane.store.living() if sandbox.workspace == workspace]
    living.sort(key=lambda one: (one.created_at, one.id), reverse=True)
    return [_live(plane, sandbox, found.get(sandbox.id)) for sandbox in living]


def _live(plane: Plane, sandbox: Sandbox, found: host.Incarnation | None) -> Live:
    usage = host.Usage() if found is None else found.usage
    return Live(sandbox, usage, plane.activity.in_flight(sandbox.id))


def _spent(plane: Plane, account: Account, span: Span, now: datetime) -> SandboxSpent:
    sandbox = account.sandbox
    until = _latest(span.until, now, account.deleted_at)
    since = sandbox.created_at if span.since is None else max(span.since, sandbox.created_at)
    rate = plane.prices.rate(sandbox.cpu, sandbox.memory_mb)
    usage = summed(account.intervals, rate, now, span.since, span.until)
    return SandboxSpent(account, Spent(min(since, until), until, usage))


def _latest(*ends: datetime | None) -> datetime:
    return min(end for end in ends if end is not None)
