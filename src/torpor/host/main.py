"""The host agent, put together: the only place where its collaborators are chosen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import structlog
from starlette.applications import Starlette

from torpor.errors import NotFound, TorporError
from torpor.guest.client import connect
from torpor.host.admission import Admission
from torpor.host.adopt import greeting
from torpor.host.api import host_app
from torpor.host.builds_api import sweep_builds
from torpor.host.choice import DriverChoice
from torpor.host.config import HostConfig
from torpor.host.containment import sweep_groups
from torpor.host.host import Host
from torpor.host.keeping import keeping
from torpor.host.limits import limits_for
from torpor.host.live import Incarnation
from torpor.host.lock import alive, locked
from torpor.host.metering import metering, note
from torpor.host.prepared import Preparer
from torpor.host.recover import Again, recover
from torpor.host.revive import reviving
from torpor.host.scarcity import sparing
from torpor.host.spares import Spares
from torpor.kit.limits import allow_many_open_files
from torpor.kit.shielded import shielded
from torpor.kit.together import together
from torpor.network.contract import Network
from torpor.network.slots import network_of
from torpor.storage.images import Images
from torpor.storage.layout import Layout
from torpor.storage.named_volumes import NamedVolumes
from torpor.storage.snapshots import Snapshots
from torpor.storage.templates import Templates
from torpor.storage.volume import use_volume
from torpor.vmm.driver import Survivors
from torpor.vmm.qemu.survivors import QemuSurvivors
from torpor.vmm.qemu.tree import keep_only

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def host_agent(config: HostConfig) -> AsyncIterator[Starlette]:
    """Run a host agent on a data directory and yield its application.

    It takes over what lives there, and what lives at the end is left to the next one, and to a keeper until then.

    Raises Busy if another server has the data directory, Unsupported if this host lacks what machines need.
    """
    home = config.home.resolve()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    survivors = QemuSurvivors()
    allow_many_open_files()  # a sandbox takes ten or so
    with (
        locked(Layout(home).lock, what=f"the data directory {home}"),
        alive(Layout(home).alive),
        use_volume(home, config.volume) as layout,
    ):
        async with keeping(layout, survivors), network_of(home, config.network) as network:
            host = await _put_together(config, layout, survivors, network)
            try:
                again = Again(host.live, layout, host.snapshots, survivors)
                async with (
                    reviving(host.live),
                    sparing(host.live, host.layout),
                    metering(host.live),
                    greeting(host.live, host.connect_guest, again),
                ):
                    yield host_app(host)
            finally:
                await shielded(_leave_all(host))


async def _put_together(config: HostConfig, layout: Layout, survivors: Survivors, network: Network) -> Host:
    snapshots = Snapshots(layout)
    live = await recover(layout, snapshots, survivors, network)
    sweep_groups(layout)
    await sweep_builds(layout)
    choose = DriverChoice(config, layout)
    with suppress(NotFound):  # no template yet, so no kernel to probe with: decided at the first create
        await choose()
    if choose.jail is not None:  # nobody else starts machines from what an earlier QEMU needed
        keep_only(choose.jail.tree)
    connect_guest = partial(connect, timeout_s=config.guest_timeout_s)
    preparer = Preparer(layout, Images(layout), choose, connect_guest, network)
    volumes = NamedVolumes(layout)
    admission = Admission(live, limits_for(config.capacity, layout), kept=lambda: volumes.promised_bytes)
    return Host(
        layout=layout,
        templates=Templates(layout),
        snapshots=snapshots,
        preparer=preparer,
        spares=Spares(preparer, admission, keep_s=config.spare_s),
        connect_guest=connect_guest,
        live=live,
        admission=admission,
        volumes=volumes,
    )


async def _leave_all(host: Host) -> None:
    """End what is nobody's, and let go of what lives, with what it used noted. What fails with one harms no other."""
    await host.spares.aclose()
    works = [_leave(host, incarnation) for incarnation in host.live.all()]
    works += [sleeper.hang_up() for sleeper in host.live.sleepers()]
    if works:
        await together(*works)


async def _leave(host: Host, incarnation: Incarnation) -> None:
    async with host.live.lock(incarnation.id):
        if host.live.find(incarnation.id) is not incarnation:
            return
        try:
            if not incarnation.machine.alive:
                await incarnation.aclose()
                return
            note(incarnation)
            await incarnation.leave()
        except (TorporError, OSError) as error:
            _log.error("a sandbox was not left in good order", sandbox=incarnation.id, error=str(error))
