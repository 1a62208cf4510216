"""create: restore a template's snapshot, a checkpoint, or what a sandbox sleeps in, under a new identity."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from torpor.errors import Conflict, InvalidRequest, Unsupported
from torpor.host.admission import need_of_machine
from torpor.host.flow.admit import admitted
from torpor.host.flow.restore import Birth, Event, restore
from torpor.host.host import Host
from torpor.host.live import Incarnation, Sleeper, not_here
from torpor.host.prepared import Prepared
from torpor.host.volumes import attach_all
from torpor.model.identity import Identity
from torpor.model.ids import SandboxId, SnapshotId, TemplateName
from torpor.model.network import NO_NETWORK, Egress, Mode
from torpor.model.volume import Attachment, copies
from torpor.storage.frozen import Frozen, check
from torpor.storage.volume import ensure_room
from torpor.vmm.driver import Place

# Nobody gets the secrets of the sandbox that a template was made of.
_NO_SECRETS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Source:
    """What a sandbox is made from: exactly one of the three.

    `env` is added to what its commands start from; `secrets` are, in place of those that it holds (None: it keeps
    them). `volumes`: those that it is to have; of what has some already it gets copies. `deadline`: when its machine
    ends at the latest, in seconds since 1970 (None: never). `egress`: what it may reach.
    """

    template: TemplateName | None = None
    snapshot: SnapshotId | None = None
    sleeper: SandboxId | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, str] | None = field(default=None, repr=False)
    deadline: float | None = None
    egress: Egress = NO_NETWORK
    volumes: tuple[Attachment, ...] = ()


async def create(host: Host, sandbox: SandboxId, source: Source) -> Incarnation:
    """Make a sandbox. On error nothing of it is left on the host.

    Raises NotFound, Conflict for an id that is here already, NoCapacity, Unsupported if it is to reach something from a
    host without a network, and what restoring raises.
    """
    if source.egress.mode is not Mode.NONE and (trouble := host.preparer.network.trouble):
        raise Unsupported(f"sandboxes on this host have no network: {trouble}", hint='create it with network="none"')
    async with host.live.lock(sandbox):
        if host.live.whatever(sandbox) is not None:
            raise Conflict(f"the sandbox {sandbox} is already on this host", seen="running", needed=["deleted"])
        place = Place(sandbox, host.layout.sandboxes / sandbox)
        frozen, opening = await _found(host, source, place)
        event: Event | None = "fork" if frozen.has_processes else None
        secrets = _NO_SECRETS if source.template is not None and source.secrets is None else source.secrets
        birth = Birth(Identity(sandbox), source.env, secrets, event, source.deadline, source.egress)
        if source.template is not None:
            _check_bays(frozen, source.volumes)
            birth = dataclasses.replace(birth, volumes=source.volumes, mounts=True)
        else:
            birth = dataclasses.replace(birth, volumes=copies(frozen.volumes))
        need = need_of_machine(frozen.template, birth.volumes)
        async with admitted(host, sandbox, need, taking=source.template):
            incarnation = await restore(opening(), birth)
            host.live.enter(incarnation)
        return incarnation


async def _found(host: Host, source: Source, place: Place) -> tuple[Frozen, Callable[[], Awaitable[Prepared]]]:
    """Return what the sandbox is made from, and what prepares a machine of it."""
    await asyncio.to_thread(ensure_room, host.layout, 0)
    match source:
        case Source(template=str() as name, snapshot=None, sleeper=None):
            frozen = await asyncio.to_thread(host.templates.open, TemplateName(name))
            return frozen, partial(_from_template, host, frozen, place, source.volumes)
        case Source(template=None, snapshot=str() as snapshot, sleeper=None):
            frozen = await asyncio.to_thread(host.snapshots.open, SnapshotId(snapshot))
            return frozen, partial(host.preparer.prepare, frozen, place)
        case Source(template=None, snapshot=None, sleeper=str() as name):
            sleeper = SandboxId(name)
            return _sleeping(host, sleeper).base, partial(_from_sleeper, host, sleeper, place)
    raise InvalidRequest("exactly one of template, snapshot and sleeper is to be given")


def _check_bays(frozen: Frozen, volumes: tuple[Attachment, ...]) -> None:
    if len(volumes) > (bays := frozen.template.bays):
        few = f"at most {bays} volumes" if bays else "no volumes, as it was baked by an older version"
        raise Unsupported(f"a sandbox of {frozen.title} can have {few}", hint="attach fewer" if bays else frozen.mend)


async def _from_template(host: Host, frozen: Frozen, place: Place, volumes: tuple[Attachment, ...]) -> Prepared:
    """Take a machine that was prepared ahead, or prepare one, with its volumes; and have the next one prepared."""
    prepared = await host.spares.take(frozen)
    host.spares.refill(frozen)
    try:
        prepared.settle(place)
        await attach_all(host.volumes, prepared, volumes)
        await prepared.machine.resume()
    except BaseException:
        await prepared.aclose()
        raise
    return prepared


async def _from_sleeper(host: Host, sandbox: SandboxId, place: Place) -> Prepared:
    """Prepare a machine from what a sandbox sleeps in, which it goes on sleeping in."""
    async with host.live.lock(sandbox):
        sleeper = _sleeping(host, sandbox)
        await asyncio.to_thread(check, sleeper.base)
        return await host.preparer.prepare(sleeper.base, place)


def _sleeping(host: Host, sandbox: SandboxId) -> Sleeper:
    sleeper = host.live.sleeper(sandbox)
    if sleeper is None:
        here = host.live.whatever(sandbox) is not None
        raise Conflict(f"the sandbox {sandbox} does not sleep") if here else not_here(sandbox)
    return sleeper
