"""The questions and changes that are more than a line, as statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Delete,
    ScalarSelect,
    Select,
    Table,
    TextClause,
    Update,
    and_,
    delete,
    exists,
    func,
    or_,
    select,
    update,
)

from torpor.control.store.contract import AccountListing, EventListing, Horizons, Listing, Position, SnapshotListing
from torpor.control.store.tables import (
    IS_DELETED,
    IS_LIVING,
    IS_OPEN_BUILD,
    builds,
    claims,
    events,
    intervals,
    labels,
    sandboxes,
    snapshots,
    templates,
    volumes,
)
from torpor.model.ids import SandboxId, WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.snapshot import Kind

_ENDING = (State.DELETING.value, State.DELETED.value)


def page_of(listing: Listing) -> Select[Any]:
    """Return the question for a page of living sandboxes."""
    query = _having(listing.metadata).where(sandboxes.c.workspace == listing.workspace, IS_LIVING).limit(listing.limit)
    if listing.state is not None:
        query = query.where(sandboxes.c.state == listing.state.value)
    if listing.after is not None:
        query = query.where(_behind(sandboxes, listing.after))
    return query.order_by(sandboxes.c.created_at.desc(), sandboxes.c.id.desc())


def snapshots_of_page(listing: SnapshotListing) -> Select[Any]:
    """Return the question for a page of snapshots, in no order."""
    query = select(snapshots).where(snapshots.c.workspace == listing.workspace).limit(listing.limit)
    if listing.sandbox is not None:
        query = query.where(snapshots.c.sandbox_id == listing.sandbox)
    if listing.after is not None:
        query = query.where(_behind(snapshots, listing.after))
    return query


def holdings_of(workspace: WorkspaceId) -> Select[Any]:
    """Return the question for the sums over a workspace's living sandboxes, and its checkpoints, templates, builds
    and volumes.
    """
    kept = select(func.count()).where(snapshots.c.workspace == workspace, snapshots.c.kind == Kind.CHECKPOINT.value)
    return select(
        func.count().label("sandboxes"),
        func.coalesce(func.sum(sandboxes.c.memory_mb), 0).label("memory_mib"),
        func.coalesce(func.sum(sandboxes.c.disk_gb), 0).label("disk_gib"),
        kept.scalar_subquery().label("snapshots"),
        _count_of(templates, workspace).label("templates"),
        _count_of(builds, workspace, IS_OPEN_BUILD).label("builds"),
        _count_of(volumes, workspace).label("volumes"),
        select(func.coalesce(func.sum(volumes.c.size_mb), 0))
        .where(volumes.c.workspace == workspace)
        .scalar_subquery()
        .label("volume_mib"),
    ).where(sandboxes.c.workspace == workspace, IS_LIVING)


def _count_of(table: Table, workspace: WorkspaceId, *conditions: TextClause) -> ScalarSelect[Any]:
    return select(func.count()).select_from(table).where(table.c.workspace == workspace, *conditions).scalar_subquery()


def events_of(listing: EventListing) -> Select[Any]:
    """Return the question for a page of events."""
    query = select(events).where(events.c.workspace == listing.workspace, events.c.number > listing.after)
    if listing.sandbox is not None:
        query = query.where(events.c.sandbox_id == listing.sandbox)
    if listing.types:
        query = query.where(events.c.type.in_(listing.types))
    return query.order_by(events.c.number).limit(listing.limit)


def account_holders(listing: AccountListing) -> Select[Any]:
    """Return the question for the sandboxes whose accounts are asked for."""
    query = _having(listing.metadata).where(sandboxes.c.workspace == listing.workspace)
    if listing.sandbox is not None:
        query = query.where(sandboxes.c.id == listing.sandbox)
    if listing.since is not None:
        query = query.where(or_(IS_LIVING, sandboxes.c.changed_at > listing.since))
    if listing.until is not None:
        query = query.where(sandboxes.c.created_at < listing.until)
    if listing.after is not None:
        query = query.where(_behind(sandboxes, listing.after))
    if listing.limit is not None:
        query = query.limit(listing.limit)
    return query.order_by(sandboxes.c.created_at.desc(), sandboxes.c.id.desc())


def intervals_of(listing: AccountListing, holders: Sequence[str]) -> Select[Any]:
    """Return the question for the intervals of some sandboxes, each sandbox's in the order of time."""
    query = select(intervals).where(intervals.c.sandbox_id.in_(holders))
    if listing.since is not None:
        query = query.where(or_(intervals.c.is_open, intervals.c.ended_at > listing.since))
    if listing.until is not None:
        query = query.where(intervals.c.began_at < listing.until)
    return query.order_by(intervals.c.sandbox_id, intervals.c.began_at, intervals.c.id)


def of_living_one(sandbox_id: SandboxId) -> Update:
    """Return a change, still of nothing, of a sandbox that is neither deleting nor deleted."""
    return update(sandboxes).where(sandboxes.c.id == sandbox_id, sandboxes.c.state.not_in(_ENDING))


def look_back(condition: ColumnElement[bool]) -> Update:
    """Return the change that finds out the last snapshot of sandboxes."""
    own = (
        select(snapshots.c.id)
        .where(snapshots.c.sandbox_id == sandboxes.c.id)
        .order_by(snapshots.c.created_at.desc(), snapshots.c.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    origin = select(snapshots.c.id).where(snapshots.c.id == sandboxes.c.from_snapshot).scalar_subquery()
    return update(sandboxes).where(condition).values(last_snapshot=func.coalesce(own, origin))


def forgetting(horizons: Horizons) -> tuple[Delete, Delete, Delete]:
    """Return the changes that drop claims, events and sandboxes; labels, claims and ledgers go with their sandboxes."""
    holder_is_old = exists().where(
        sandboxes.c.id == claims.c.sandbox_id, IS_DELETED, sandboxes.c.changed_at < horizons.claims
    )
    return (
        delete(claims).where(holder_is_old),
        delete(events).where(events.c.at < horizons.events),
        delete(sandboxes).where(IS_DELETED, sandboxes.c.changed_at < horizons.sandboxes),
    )


def _having(metadata: Mapping[str, str]) -> Select[Any]:
    query = select(sandboxes)
    for key, value in metadata.items():
        has_pair = and_(labels.c.sandbox_id == sandboxes.c.id, labels.c.key == key, labels.c.value == value)
        query = query.where(exists().where(has_pair))
    return query


def _behind(table: Table, after: Position) -> ColumnElement[bool]:
    same_moment = and_(table.c.created_at == after.created_at, table.c.id < after.id)
    return or_(table.c.created_at < after.created_at, same_moment)
