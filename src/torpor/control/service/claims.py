"""Idempotency keys: a request that is sent twice is served once."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from torpor.control.reconcile import reconcile_one
from torpor.control.service.plane import Plane
from torpor.control.store.contract import Claim
from torpor.control.store.rules import claim_is_free
from torpor.errors import Conflict, InvalidRequest, OutcomeUnknown, QuotaExceeded
from torpor.model.ids import WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox

T = TypeVar("T")

_KEY = re.compile(r"[\x21-\x7e]{1,255}")


def checked_key(key: str) -> str:
    """Return a key. Raises InvalidRequest if it is none."""
    if _KEY.fullmatch(key) is None:
        raise InvalidRequest("Idempotency-Key has to be 1 to 255 visible ASCII characters")
    return key


def claim_for(plane: Plane, asked: Mapping[str, Any], hidden: Mapping[str, Any], key: str | None) -> Claim | None:
    """Return the claim of a key on what was asked, None without a key. Raises as `checked_key`.

    `hidden` was asked too, and is not to be found out from what is recorded: who has the database and not the server's
    own secret cannot tell what it was, not even by trying everything that it may have been.
    """
    if key is None:
        return None
    told = json.dumps(asked, sort_keys=True).encode()
    if hidden:
        told += hmac.digest(plane.seal, json.dumps(hidden, sort_keys=True).encode(), hashlib.sha256)
    return Claim(checked_key(key), hashlib.sha256(told).hexdigest())


async def unless_claimed(
    plane: Plane, workspace: WorkspaceId, claim: Claim | None, making: Awaitable[T | None]
) -> T | None:
    """Return what `making` makes; None if it was refused, as something is used up, or somebody else's, but the same
    request came before and holds the claim.
    """
    try:
        return await making
    except (Conflict, QuotaExceeded):
        if claim is None or await plane.store.claimed(workspace, claim) is None:
            raise
        return None


async def served_before(plane: Plane, held: Sandbox, claim: Claim) -> Sandbox | None:
    """Wait for the request that made `held` and return the sandbox; None if it came to nothing, so the key is free.

    Raises Conflict if it has been deleted since, OutcomeUnknown if the host cannot tell what became of it.
    """
    async with plane.gate.alone(held.id):
        sandbox = await plane.store.get(held.id)
    if sandbox is not None and sandbox.state is State.CREATING:  # its answer was lost: ask the host
        await reconcile_one(plane, held.id)
        sandbox = await plane.store.get(held.id)
    if sandbox is None or claim_is_free(sandbox):
        return None
    if sandbox.state is State.CREATING:
        raise OutcomeUnknown(f"it is not known yet whether sandbox {held.id} came to life")
    if sandbox.state in (State.DELETING, State.DELETED):
        message = f"sandbox {held.id}, made with the idempotency key {claim.key!r}, has been deleted since"
        raise Conflict(message, seen=sandbox.state.value, hint="use a fresh key to make another")
    return sandbox
