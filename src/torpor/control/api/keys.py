"""`/v1/me` and `/v1/me/tokens`: whose key this is, and the keys of its workspace: make, list, revoke."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from torpor import errors
from torpor.control.access import AccessConfig
from torpor.control.api.deps import IdempotencyKey, Targets, TheCaller, ThePlane
from torpor.control.api.problems import refusals
from torpor.control.service.keys import is_local, list_keys, make_key, name_of, revoke_key
from torpor.model.access import Key
from torpor.wire.access import Limits, MakeToken, Me, TokenList, TokenMade, TokenView

router = APIRouter(prefix="/v1/me", tags=["keys"])

Prefix = Annotated[str, Path(description="the first characters of a key, as listed", max_length=64)]
OfWorkspace = Annotated[
    str | None, Query(description="an admin's key: the keys of this workspace", max_length=63, min_length=1)
]


@router.get("", responses=refusals())
async def me(plane: ThePlane, caller: TheCaller, request: Request) -> Me:
    """Say whose key this is, and how often it may ask."""
    access: AccessConfig = request.app.state.access
    limits = Limits()
    if not is_local(caller):
        limits = Limits(rate_per_second=access.rate_per_second, rate_burst=access.rate_burst)
    return Me(
        workspace=caller.workspace,
        role=caller.role.value,
        prefix=caller.prefix,
        name=await name_of(plane, caller),
        expires_at=caller.expires_at,
        limits=limits,
    )


@router.get("/tokens", responses=refusals())
async def list_tokens(plane: ThePlane, caller: TheCaller, workspace: OfWorkspace = None) -> TokenList:
    """List the keys of the caller's workspace, the newest first, without the keys themselves."""
    return TokenList(items=[token_view(key) for key in await list_keys(plane, caller, workspace)])


@router.post("/tokens", status_code=201, responses=refusals(errors.Conflict, errors.QuotaExceeded))
async def make_token(
    plane: ThePlane, caller: TheCaller, wish: MakeToken, targets: Targets, idempotency_key: IdempotencyKey = None
) -> TokenMade:
    """Make a key. The answer has the key itself, which is shown only here."""
    made = await make_key(plane, caller, wish, idempotency_key)
    targets.append(made.key.prefix)
    return TokenMade(**token_view(made.key).model_dump(), token=made.plain)


@router.delete("/tokens/{prefix}", status_code=204, responses=refusals(errors.NotFound, errors.Conflict))
async def revoke_token(plane: ThePlane, caller: TheCaller, prefix: Prefix, workspace: OfWorkspace = None) -> None:
    """Revoke a key: from the answer on it opens nothing. Revoking it again is fine."""
    await revoke_key(plane, caller, prefix, workspace)


def token_view(key: Key) -> TokenView:
    """Return a key as clients see it."""
    return TokenView(
        prefix=key.prefix,
        name=key.name,
        workspace=key.workspace,
        role=key.role.value,
        created_at=key.created_at,
        created_by=key.made_by,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
        last_used_at=key.last_used_at,
    )
