"""create: restore a template's snapshot, a checkpoint, or what a sandbox sleeps in, under a new identity."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field

from torpor.errors import Conflict, InvalidRequest
from torpor.host.flow.restore import Birth, Event, restore
from torpor.host.host import Host
from torpor.host.live import Incarnation, not_here
from torpor.host.prepared import Prepared
from torpor.model.identity import Identity
from torpor.model.ids import SandboxId, SnapshotId, TemplateName
from torpor.storage.frozen import check
from torpor.storage.volume import ensure_room
from torpor.vmm.driver import Place


@dataclass(frozen=True, slots=True)
class Source:
    """What a sandbox is made from: exactly one of the three.

    `env` is added to what its commands start from. `deadline`: when its machine ends at the latest, in seconds since
    1970 (None: never).
    """

    template: TemplateName | None = None
    snapshot: SnapshotId | None = None
    sleeper: SandboxId | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    deadline: float | None = None


async def create(host: Host, sandbox: SandboxId, source: Source) -> Incarnation:
    """Make a sandbox. On error nothing of it is left on the host.

    Raises NotFound, Conflict for an id that is here already, and what restoring raises.
    """
    async with host.live.lock(sandbox):
        if host.live.whatever(sandbox) is not None:
            raise Conflict(f"the sandbox {sandbox} is already on this host", seen="running", needed=["deleted"])
        place = Place(sandbox, host.layout.sandboxes / sandbox)
        event: Event | None = None if source.template is not None else "fork"
        birth = Birth(Identity(sandbox), source.env, event, source.deadline)
        incarnation = await restore(_opening(host, source, place), birth)
        host.live.enter(incarnation)
        return incarnation


def _opening(host: Host, source: Source, place: Place) -> Awaitable[Prepared]:
    match source:
        case Source(template=str() as name, snapshot=None, sleeper=None):
            return _from_template(host, TemplateName(name), place)
        case Source(template=None, snapshot=str() as snapshot, sleeper=None):
            return _from_snapshot(host, SnapshotId(snapshot), place)
        case Source(template=None, snapshot=None, sleeper=str() as sleeper):
            return _from_sleeper(host, SandboxId(sleeper), place)
    raise InvalidRequest("exactly one of template, snapshot and sleeper is to be given")


async def _from_snapshot(host: Host, snapshot: SnapshotId, place: Place) -> Prepared:
    frozen = await asyncio.to_thread(host.snapshots.open, snapshot)
    return await host.preparer.prepare(frozen, place)


async def _from_template(host: Host, name: TemplateName, place: Place) -> Prepared:
    """Take a machine that was prepared ahead, or prepare one; and have the next one prepared."""
    await asyncio.to_thread(ensure_room, host.layout, 0)
    frozen = await asyncio.to_thread(host.templates.open, name)
    prepared = await host.spares.take(frozen)
    host.spares.refill(frozen)
    try:
        prepared.settle(place)
        await prepared.machine.resume()
    except BaseException:
        await prepared.aclose()
        raise
    return prepared


async def _from_sleeper(host: Host, sandbox: SandboxId, place: Place) -> Prepared:
    """Prepare a machine from what a sandbox sleeps in, which it goes on sleeping in."""
    async with host.live.lock(sandbox):
        sleeper = host.live.sleeper(sandbox)
        if sleeper is None:
            here = host.live.whatever(sandbox) is not None
            raise Conflict(f"the sandbox {sandbox} does not sleep") if here else not_here(sandbox)
        await asyncio.to_thread(check, sleeper.base)
        return await host.preparer.prepare(sleeper.base, place)
