"""The host agent, put together: the only place where its collaborators are chosen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

from starlette.applications import Starlette

from torpor.errors import NotFound
from torpor.guest.client import connect
from torpor.host.api import host_app
from torpor.host.choice import DriverChoice
from torpor.host.config import HostConfig
from torpor.host.flow.delete import delete
from torpor.host.host import Host
from torpor.host.lock import locked
from torpor.host.prepared import Preparer
from torpor.host.recover import recover
from torpor.host.revive import reviving
from torpor.host.spares import Spares
from torpor.kit.shielded import shielded
from torpor.storage.images import Images
from torpor.storage.layout import Layout
from torpor.storage.snapshots import Snapshots
from torpor.storage.templates import Templates
from torpor.storage.volume import use_volume


@asynccontextmanager
async def host_agent(config: HostConfig) -> AsyncIterator[Starlette]:
    """Run a host agent on a data directory and yield its application; at the end every machine is ended.

    What sleeps goes on sleeping.

    Raises Busy if another server has the data directory, Unsupported if this host lacks what machines need.
    """
    home = config.home.resolve()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(Layout(home).lock, what=f"the data directory {home}"), use_volume(home, config.volume) as layout:
        layout.make()
        host = await _put_together(config, layout)
        try:
            async with reviving(host.live):
                yield host_app(host)
        finally:
            await shielded(_end_all(host))


async def _put_together(config: HostConfig, layout: Layout) -> Host:
    snapshots = Snapshots(layout)
    live = await asyncio.to_thread(recover, layout, snapshots)
    choose = DriverChoice(config, layout)
    with suppress(NotFound):  # no template yet, so no kernel to probe with: decided at the first create
        await choose()
    connect_guest = partial(connect, timeout_s=config.guest_timeout_s)
    preparer = Preparer(layout, Images(layout), choose, connect_guest)
    return Host(
        layout=layout,
        templates=Templates(layout),
        snapshots=snapshots,
        preparer=preparer,
        spares=Spares(preparer, keep_s=config.spare_s),
        connect_guest=connect_guest,
        live=live,
    )


async def _end_all(host: Host) -> None:
    await host.spares.aclose()
    async with asyncio.TaskGroup() as group:
        for incarnation in host.live.all():
            group.create_task(delete(host, incarnation.id))
