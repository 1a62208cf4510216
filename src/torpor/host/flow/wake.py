"""wake: restore what a sandbox sleeps in, under its own identity."""

from __future__ import annotations

import asyncio
from functools import partial

from torpor.errors import RestoreFailed
from torpor.host.admission import need_of_machine
from torpor.host.flow.admit import admitted
from torpor.host.flow.restore import Birth, restore
from torpor.host.host import Host
from torpor.host.live import Incarnation, Sleeper
from torpor.host.sleep import mark_asleep_again, mark_awake, settle_awake
from torpor.host.trouble import translated
from torpor.host.volumes import take_back
from torpor.kit.shielded import shielded
from torpor.model.identity import Identity
from torpor.model.ids import SandboxId
from torpor.model.network import Egress
from torpor.storage.frozen import check


async def wake(host: Host, sandbox: SandboxId, egress: Egress | None = None) -> Incarnation:
    """Let a sandbox go on where it stopped; one that is awake is returned as it is.

    `egress`: what it may reach from then on (None: what it was told last).

    If it fails the sandbox sleeps as before, but what waited for it since it fell asleep is told that its outcome is
    unknown. Raises NotFound, Unsupported, NoCapacity, OutOfSpace, RestoreFailed; SandboxLost for one that is awake and
    dead.
    """
    async with host.live.lock(sandbox):
        sleeper = host.live.sleeper(sandbox)
        if sleeper is None:
            return host.live.get(sandbox)
        return await shielded(_wake(host, sleeper, egress or sleeper.egress))


def _confirm(host: Host, sleeper: Sleeper) -> None:
    """Note that it is awake. Its volumes are what it has from now on, which is what they were when it fell asleep."""
    with translated(RestoreFailed, "its volumes could not be given back to it"):
        take_back(host.volumes, sleeper.place.folder, sleeper.volumes)
    mark_awake(sleeper.place.folder)


async def _wake(host: Host, sleeper: Sleeper, egress: Egress) -> Incarnation:
    await asyncio.to_thread(check, sleeper.base)
    folder = sleeper.place.folder
    birth = Birth(
        Identity(sleeper.id),
        event="wake",
        egress=egress,
        volumes=sleeper.volumes,
        counted=sleeper.used,
        confirm=partial(_confirm, host, sleeper),
        take_back=partial(mark_asleep_again, folder),
        settle=partial(settle_awake, folder),
    )
    try:
        async with admitted(host, sleeper.id, need_of_machine(sleeper.base.template, sleeper.volumes)):
            incarnation = await restore(host.preparer.prepare_again(sleeper.base, sleeper.place, sleeper.line), birth)
            host.live.enter(incarnation)
    except BaseException:
        if sleeper.line is not None and not sleeper.line.suspended:
            await sleeper.hang_up()  # it had gone on, so it does not fit what the sandbox sleeps in any more
        raise
    return incarnation
