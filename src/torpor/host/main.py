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
from torpor.host.choice import ChooseDriver, DriverChoice
from torpor.host.config import HostConfig
from torpor.host.flow.delete import delete
from torpor.host.host import Host
from torpor.host.live import Live
from torpor.host.lock import locked
from torpor.host.prepared import Preparer
from torpor.host.recover import recover
from torpor.host.spares import Spares
from torpor.kit.shielded import shielded
from torpor.storage.images import Images
from torpor.storage.layout import Layout
from torpor.storage.templates import Templates


@asynccontextmanager
async def host_agent(config: HostConfig) -> AsyncIterator[Starlette]:
    """Run a host agent on a data directory and yield its application; at the end every machine is ended.

    Raises Busy if another server has the data directory, Unsupported if this host lacks what machines need.
    """
    layout = Layout(config.home.resolve())
    layout.make()
    with locked(layout.lock, what=f"the data directory {layout.home}"):
        await asyncio.to_thread(recover, layout)
        choose = DriverChoice(config, layout)
        with suppress(NotFound):  # no template yet, so no kernel to probe with: decided at the first create
            await choose()
        host = _put_together(config, layout, choose)
        try:
            yield host_app(host)
        finally:
            await shielded(_end_all(host))


def _put_together(config: HostConfig, layout: Layout, choose: ChooseDriver) -> Host:
    templates = Templates(layout)
    connect_guest = partial(connect, timeout_s=config.guest_timeout_s)
    preparer = Preparer(layout, Images(layout), templates, choose, connect_guest)
    return Host(
        layout=layout,
        templates=templates,
        spares=Spares(preparer, keep_s=config.spare_s),
        connect_guest=connect_guest,
        live=Live(),
    )


async def _end_all(host: Host) -> None:
    await host.spares.aclose()
    async with asyncio.TaskGroup() as group:
        for incarnation in host.live.all():
            group.create_task(delete(host, incarnation.id))
