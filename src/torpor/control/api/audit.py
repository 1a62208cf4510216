"""`/v1/audit`: what was done with the keys of a workspace, and by which."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query

from torpor.control.api.deps import TheCaller, ThePlane
from torpor.control.api.problems import refusals
from torpor.control.store.access import AuditListing
from torpor.errors import Forbidden, InvalidRequest
from torpor.model.access import AuditEntry, AuditKind, Caller
from torpor.model.ids import WorkspaceId
from torpor.wire.access import AuditPage, AuditView

router = APIRouter(prefix="/v1", tags=["keys"])

# What stands for every workspace, and for what came without a known key.
EVERY = "*"
_NUMBER = re.compile(r"[0-9]{1,18}")


async def listing_asked(
    caller: TheCaller,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before", max_length=32)] = None,
    order: Literal["newest", "oldest"] = "newest",
    kind: Annotated[list[AuditKind] | None, Query(description="only entries of these kinds", max_length=3)] = None,
    workspace: Annotated[
        str | None, Query(description=f"an admin's key: of this workspace, or `{EVERY}`: of all", max_length=63)
    ] = None,
) -> AuditListing:
    """Return which entries a request asks for. Raises InvalidRequest, Forbidden."""
    if cursor is not None and _NUMBER.fullmatch(cursor) is None:
        raise InvalidRequest("cursor is not one that a page of the audit log returned")
    return AuditListing(
        workspace=_workspace(caller, workspace),
        limit=limit,
        after=None if cursor is None else int(cursor),
        oldest_first=order == "oldest",
        kinds=frozenset(kind or ()),
    )


@router.get("/audit", responses=refusals())
async def list_audit(plane: ThePlane, listing: Annotated[AuditListing, Depends(listing_asked)]) -> AuditPage:
    """List what was changed, used and refused with the keys of the caller's workspace."""
    found = await plane.auditor.page(listing)
    more = found and (len(found) == listing.limit or listing.oldest_first)
    return AuditPage(items=[audit_view(entry) for entry in found], next_cursor=str(found[-1].number) if more else None)


def audit_view(entry: AuditEntry) -> AuditView:
    """Return an entry as clients see it."""
    return AuditView(
        number=entry.number,
        at=entry.at,
        kind=entry.kind.value,
        action=entry.action,
        targets=list(entry.targets),
        status=entry.status,
        workspace=entry.workspace,
        key=entry.key_prefix,
        client=entry.client,
        request_id=entry.request_id,
        count=entry.count,
    )


def _workspace(caller: Caller, asked: str | None) -> WorkspaceId | None:
    if asked not in (None, caller.workspace) and not caller.is_admin:
        raise Forbidden("only an admin's key can read what was done in another workspace", hint="leave workspace out")
    return None if asked == EVERY else WorkspaceId(asked or caller.workspace)
