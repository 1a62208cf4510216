"""Create: a template's snapshot, or a checkpoint, brought to life as a new sandbox."""

from __future__ import annotations

from dataclasses import replace

from torpor.control.service.claims import claim_for, served_before, unless_claimed
from torpor.control.service.deadlines import deadline_of
from torpor.control.service.passage import facts_of
from torpor.control.service.plane import Plane
from torpor.control.service.quotas import holdings_of
from torpor.control.service.reach import asked_for, chosen, order_of
from torpor.control.service.sandboxes import expiry, life_of
from torpor.control.service.secrets import names_of, values_of
from torpor.control.service.snapshots import show_snapshot
from torpor.control.service.wishes import CreateWish, Origin, care_of, check_size, check_supported, template_for
from torpor.control.store.contract import Claim
from torpor.model.ids import TemplateName, WorkspaceId, new_sandbox_id
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox
from torpor.wire import host


async def create(plane: Plane, workspace: WorkspaceId, wish: CreateWish, key: str | None = None) -> Sandbox:
    """Bring a new sandbox to life and return it; for an idempotency key that was used before, return the earlier one.

    If it definitely fails, nothing is left and the key is free again. Raises InvalidRequest, Unsupported, NotFound (the
    snapshot), Conflict (name taken, key used for another request, or its sandbox deleted since), QuotaExceeded, and
    what the host raises.
    """
    check_supported(wish)
    asked = asked_for(wish.network)
    claim = claim_for(plane, wish.understood(), wish.hidden(), key)
    while True:
        if claim is not None and (held := await plane.store.claimed(workspace, claim)) is not None:
            if (earlier := await served_before(plane, held, claim)) is not None:
                return earlier
            continue
        origin = await _origin(plane, workspace, wish)
        check_size(wish, origin)
        sandbox = _new(plane, workspace, wish, origin)
        sandbox = replace(sandbox, network=await chosen(plane, asked, origin.network))
        with plane.shelf.using(origin.snapshot):
            made = await unless_claimed(plane, workspace, claim, _bring_to_life(plane, sandbox, wish, claim))
        if made is not None:
            return made


async def _origin(plane: Plane, workspace: WorkspaceId, wish: CreateWish) -> Origin:
    if wish.from_snapshot is None:
        template = template_for(wish, await plane.host.templates())
        return Origin(TemplateName(template.name), template.cpu, template.memory_mb, template.disk_gb)
    found = await show_snapshot(plane, workspace, wish.from_snapshot)
    return Origin(
        found.template,
        found.cpu,
        found.memory_mb,
        found.disk_gb,
        found.id,
        found.network,
        found.secret_names,
    )


async def _bring_to_life(plane: Plane, sandbox: Sandbox, wish: CreateWish, claim: Claim | None) -> Sandbox | None:
    """Return the new sandbox, or None if somebody took the claim meanwhile."""
    snapshot = sandbox.from_snapshot
    async with (
        plane.quotas.turn(sandbox.workspace, holdings_of([sandbox])) as turn,
        plane.gate.creation(sandbox, claim) as crossing,
    ):
        await turn.aclose()  # it is on record, and counts
        if crossing.holds:
            return None
        template = sandbox.template if snapshot is None else None
        order = host.Restore(
            id=sandbox.id,
            template=template,
            snapshot=snapshot,
            env=wish.env,
            secrets=values_of(wish.secrets),
            network=order_of(sandbox.network),
            deadline=deadline_of(sandbox),
        )
        born = await plane.host.restore(order)
        crossing.learn(**facts_of(born))
    return crossing.sandbox


def _new(plane: Plane, workspace: WorkspaceId, wish: CreateWish, origin: Origin) -> Sandbox:
    now = plane.clock.now()
    ttl = life_of(wish.ttl_seconds, persistent=wish.persistent)
    return Sandbox(
        id=new_sandbox_id(),
        workspace=workspace,
        template=origin.template,
        state=State.CREATING,
        created_at=now,
        cpu=origin.cpu,
        memory_mb=origin.memory_mb,
        disk_gb=origin.disk_gb,
        expires_at=expiry(now, ttl),
        ttl_seconds=ttl,
        name=wish.name,
        metadata=wish.metadata,
        from_snapshot=origin.snapshot,
        care=care_of(wish),
        secret_names=names_of(wish.secrets, origin.secret_names),
        has_own_secrets=wish.secrets is not None,
    )
