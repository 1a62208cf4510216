"""The control plane as a whole: opened, kept true to the host, closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import structlog
from fastapi import FastAPI

from torpor.control.api.app import create_app
from torpor.control.hosts import HostClient
from torpor.control.keys import load_or_make_key
from torpor.control.reaper import reap
from torpor.control.reconcile import reconcile, watch
from torpor.control.service.plane import Plane, plane_of
from torpor.control.store.sql import open_store
from torpor.errors import TorporError
from torpor.kit.clock import Clock, SystemClock
from torpor.kit.owning import Closable
from torpor.kit.shielded import shielded, wait_ended

_log = structlog.get_logger("torpor.control")

DATABASE_FILE = "torpor.db"


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """Where the control plane keeps its data, and how often, in seconds, it compares it with the host's."""

    home: Path
    watch_every_s: float = 2.0
    clock: Clock = field(default_factory=SystemClock)


@asynccontextmanager
async def control_plane(config: ControlConfig, host_transport: httpx2.AsyncBaseTransport) -> AsyncIterator[FastAPI]:
    """Open the control plane over one host and yield its application, which may serve while the block lasts.

    The database is `torpor.db` and the key `key` under the home, which is made if it is missing; nobody else may use
    them meanwhile. Raises Unsupported for a database newer than this program, Failed for one that is not ours,
    Forbidden for a key file that others can read. A host that cannot be reached yet is no error.
    """
    config.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = load_or_make_key(config.home)
    async with AsyncExitStack() as undo:
        store = await open_store(config.home / DATABASE_FILE)
        undo.push_async_callback(_close, store)
        host = HostClient(host_transport)
        undo.push_async_callback(_close, host)
        plane = plane_of(store, host, config.clock)
        await _catch_up(plane)
        await undo.enter_async_context(_background(reap(plane), watch(plane, config.watch_every_s)))
        yield create_app(plane, key)


async def _catch_up(plane: Plane) -> None:
    """Learn what became of everything while nobody looked."""
    try:
        differences = await reconcile(plane)
    except TorporError as error:
        _log.warning("could not reconcile at start; the watcher will", error=error.message)
        return
    _log.info("reconciled at start", differences=differences)


@asynccontextmanager
async def _background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run work for ever while the block lasts; work that fails ends the block with its error."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in work]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                await wait_ended(task)


async def _close(resource: Closable) -> None:
    await shielded(resource.aclose())
