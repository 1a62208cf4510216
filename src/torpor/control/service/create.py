"""Create: a template's snapshot, or a checkpoint, brought to life as a new sandbox."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import asdict, replace

from torpor.control.service.claims import claim_for, served_before, unless_claimed
from torpor.control.service.deadlines import deadline_of
from torpor.control.service.passage import facts_of
from torpor.control.service.plane import Plane
from torpor.control.service.quotas import holdings_of
from torpor.control.service.reach import asked_for, chosen, order_of
from torpor.control.service.sandboxes import expiry, life_of
from torpor.control.service.secrets import names_of, values_of
from torpor.control.service.snapshots import show_snapshot
from torpor.control.service.templates import naming, template_for
from torpor.control.service.volumes import attached
from torpor.control.service.wishes import CreateWish, Origin, care_of, check_size, check_volumes
from torpor.control.store.contract import Claim
from torpor.model.ids import TemplateName, WorkspaceId, new_sandbox_id
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox
from torpor.model.volume import copies
from torpor.wire import host


async def create(plane: Plane, workspace: WorkspaceId, wish: CreateWish, key: str | None = None) -> Sandbox:
    """Bring a new sandbox to life and return it; for an idempotency key that was used before, return the earlier one.

    If it definitely fails, nothing is left and the key is free again. Raises InvalidRequest, Unsupported, NotFound (the
    snapshot), Conflict (name taken, key used for another request, or its sandbox deleted since), QuotaExceeded, and
    what the host raises.
    """
    check_volumes(wish)
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
        with plane.shelf.using(origin.snapshot), plane.templates.using(origin.host_name):
            made = await unless_claimed(plane, workspace, claim, _bring_to_life(plane, sandbox, wish, claim, origin))
        if made is not None:
            return made


async def _origin(plane: Plane, workspace: WorkspaceId, wish: CreateWish) -> Origin:
    if wish.from_snapshot is None:
        found = await template_for(plane, workspace, wish.template)
        view = found.view
        return Origin(TemplateName(view.name), view.cpu, view.memory_mb, view.disk_gb, host_name=found.host_name)
    record = await show_snapshot(plane, workspace, wish.from_snapshot)
    return Origin(
        record.template,
        record.cpu,
        record.memory_mb,
        record.disk_gb,
        record.id,
        record.network,
        record.secret_names,
        volumes=copies(record.volumes),
    )


async def _bring_to_life(
    plane: Plane, sandbox: Sandbox, wish: CreateWish, claim: Claim | None, origin: Origin
) -> Sandbox | None:
    """Return the new sandbox, or None if somebody took the claim meanwhile."""
    snapshot = sandbox.from_snapshot
    async with AsyncExitStack() as passages:
        turn = await passages.enter_async_context(plane.quotas.turn(sandbox.workspace, holdings_of([sandbox])))
        volumes = origin.volumes or await attached(plane, sandbox.workspace, wish.volumes or [])
        sandbox = replace(sandbox, volumes=volumes)
        crossing = await passages.enter_async_context(plane.gate.creation(sandbox, claim))
        await turn.aclose()  # it is on record, and counts
        if crossing.holds:
            return None
        template = origin.host_name if snapshot is None else None
        order = host.Restore(
            id=sandbox.id,
            template=template,
            snapshot=snapshot,
            env=wish.env,
            secrets=values_of(wish.secrets),
            network=order_of(sandbox.network),
            deadline=deadline_of(sandbox),
            volumes=[host.Attached(**asdict(each)) for each in volumes] if snapshot is None else [],
        )
        with naming(origin.host_name, sandbox.template):
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
