"""Create: a template's snapshot, brought to life as a new sandbox."""

from __future__ import annotations

import hashlib
import json
import re

from torpor.control.reconcile import reconcile_one
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import expiry, life_of
from torpor.control.service.wishes import CreateWish, check_size, check_supported, template_for
from torpor.control.store.contract import Claim
from torpor.control.store.rules import claim_is_free
from torpor.errors import Conflict, InvalidRequest, OutcomeUnknown
from torpor.model.ids import TemplateName, WorkspaceId, new_sandbox_id
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox
from torpor.wire import host
from torpor.wire.public import TemplateView

_KEY = re.compile(r"[\x21-\x7e]{1,255}")


async def create(plane: Plane, workspace: WorkspaceId, wish: CreateWish, key: str | None = None) -> Sandbox:
    """Bring a new sandbox to life and return it; for an idempotency key that was used before, return the earlier one.

    If it definitely fails, nothing is left and the key is free again. Raises InvalidRequest, Unsupported, Conflict
    (name taken, key used for another request, or its sandbox deleted since), and what the host raises.
    """
    check_supported(wish)
    claim = _claim(wish, key)
    while True:
        if claim is not None and (held := await plane.store.claimed(workspace, claim)) is not None:
            if (earlier := await _settled(plane, held, claim)) is not None:
                return earlier
            continue
        template = template_for(wish, await plane.host.templates())
        check_size(wish, template)
        if (sandbox := await _bring_to_life(plane, _new(plane, workspace, wish, template), wish, claim)) is not None:
            return sandbox


async def _bring_to_life(plane: Plane, sandbox: Sandbox, wish: CreateWish, claim: Claim | None) -> Sandbox | None:
    """Return the new sandbox, or None if somebody took the claim meanwhile."""
    async with plane.gate.creation(sandbox, claim) as crossing:
        if crossing.holds:
            return None
        order = host.Restore(id=sandbox.id, template=sandbox.template, env=wish.env)
        born = await plane.host.restore(order)
        crossing.learn(boot_ms=born.boot_ms, cpu=born.cpu, memory_mb=born.memory_mb, disk_gb=born.disk_gb)
    return crossing.sandbox


def _new(plane: Plane, workspace: WorkspaceId, wish: CreateWish, template: TemplateView) -> Sandbox:
    now = plane.clock.now()
    ttl = life_of(wish.ttl_seconds, persistent=wish.persistent)
    return Sandbox(
        id=new_sandbox_id(),
        workspace=workspace,
        template=TemplateName(template.name),
        state=State.CREATING,
        created_at=now,
        cpu=template.cpu,
        memory_mb=template.memory_mb,
        disk_gb=template.disk_gb,
        expires_at=expiry(now, ttl),
        ttl_seconds=ttl,
        name=wish.name,
        metadata=wish.metadata,
    )


def _claim(wish: CreateWish, key: str | None) -> Claim | None:
    if key is None:
        return None
    if _KEY.fullmatch(key) is None:
        raise InvalidRequest("Idempotency-Key has to be 1 to 255 visible ASCII characters")
    asked = json.dumps(wish.understood(), sort_keys=True)
    return Claim(key, hashlib.sha256(asked.encode()).hexdigest())


async def _settled(plane: Plane, held: Sandbox, claim: Claim) -> Sandbox | None:
    """Wait for the request that made `held` and return the sandbox; None if it came to nothing, so the key is free."""
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
