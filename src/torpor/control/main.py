"""The control plane as a whole: opened, kept true to the host, closed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import structlog
from fastapi import FastAPI

from torpor.control.access import AccessConfig
from torpor.control.api.app import create_app
from torpor.control.checkpoints import take_checkpoints
from torpor.control.forgetting import forget
from torpor.control.hosts import HostClient
from torpor.control.idleness import sweep
from torpor.control.keys import load_or_make_key, load_or_make_secret
from torpor.control.metering import beat, meter
from torpor.control.proxy.addresses import DEFAULT_DOMAIN, Domain
from torpor.control.reaper import reap
from torpor.control.reconcile import reconcile, watch
from torpor.control.service.builds import build_templates
from torpor.control.service.plane import Plane, Rules, plane_of
from torpor.control.service.quotas import quota_from_environment
from torpor.control.service.recovery import begin_recoveries
from torpor.control.stopping import put_to_sleep
from torpor.control.store.sql import open_store
from torpor.errors import InvalidRequest, TorporError
from torpor.kit.clock import Clock, SystemClock
from torpor.kit.owning import Closable
from torpor.kit.shielded import end_tasks, shielded
from torpor.model.capacity import Quota
from torpor.model.ids import SandboxId
from torpor.model.usage import Prices, prices_from

_log = structlog.get_logger("torpor.control")

DATABASE_FILE = "torpor.db"
# The secret under which the server notes what nobody is to find out from its database.
SEAL_FILE = "seal"


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """Where the control plane keeps its data, and how often, in seconds, it compares it with the host's.

    `stop_within_s`: how long its end may take in all to put to sleep what runs, in seconds.
    `beat_every_s`: how often what is used is counted. `tells_commands`: whether events have commands' text in them.
    `quota`: what every workspace is held to. `access`: from where the API may be asked, and how often.
    `ports_domain`: below what the hosts of servers in sandboxes are.
    """

    home: Path
    watch_every_s: float = 2.0
    clock: Clock = field(default_factory=SystemClock)
    stop_within_s: float = 60.0
    beat_every_s: float = 10.0
    prices: Prices = field(default_factory=Prices)
    tells_commands: bool = True
    quota: Quota = field(default_factory=Quota)
    access: AccessConfig = field(default_factory=AccessConfig)
    ports_domain: Domain = field(default_factory=Domain)

    def rules(self) -> Rules:
        """Return what of it the verbs go by."""
        return Rules(self.prices, self.tells_commands, self.quota, self.ports_domain)

    @classmethod
    def from_environment(cls, home: Path) -> ControlConfig:
        """Return the configuration for a data directory, with what the environment sets.

        TORPOR_STOP_SECONDS, TORPOR_EVENT_COMMANDS, TORPOR_PRICE_VCPU_SECOND, TORPOR_PRICE_GIB_SECOND,
        TORPOR_PORTS_DOMAIN, TORPOR_PORTS_OPEN, and what `quota_from_environment` and `AccessConfig` read.
        Raises InvalidRequest.
        """
        stop = os.environ.get("TORPOR_STOP_SECONDS", "60")
        if not (stop.isascii() and stop.isdecimal()):
            raise InvalidRequest(
                f"TORPOR_STOP_SECONDS is {stop!r}; it is a number of seconds, 0 to put nothing to sleep"
            )
        commands = os.environ.get("TORPOR_EVENT_COMMANDS", "on")
        if commands not in ("on", "off"):
            raise InvalidRequest(
                f"TORPOR_EVENT_COMMANDS is {commands!r}; it is on, or off to keep commands out of events"
            )
        prices = prices_from(os.environ)
        return cls(
            home,
            stop_within_s=float(stop),
            prices=prices,
            tells_commands=commands == "on",
            quota=quota_from_environment(),
            access=AccessConfig.from_environment(os.environ),
            ports_domain=_ports_domain(),
        )


def _ports_domain() -> Domain:
    """Return below what the hosts of servers in sandboxes are, and whether those are open. Raises InvalidRequest."""
    is_open = os.environ.get("TORPOR_PORTS_OPEN", "off")
    if is_open not in ("on", "off"):
        raise InvalidRequest(
            f"TORPOR_PORTS_OPEN is {is_open!r}; it is off, or on to let whoever knows a sandbox's id use its servers"
        )
    return replace(Domain.of(os.environ.get("TORPOR_PORTS_DOMAIN", DEFAULT_DOMAIN)), is_open=is_open == "on")


@asynccontextmanager
async def control_plane(config: ControlConfig, host_transport: httpx2.AsyncBaseTransport) -> AsyncIterator[FastAPI]:
    """Open the control plane over one host and yield its application, which may serve while the block lasts.

    The database is `torpor.db` and the key `key` under the home, which is made if it is missing; nobody else may use
    them meanwhile. Raises Unsupported for a database newer than this program, Failed for one that is not ours,
    Forbidden for a key file that others can read. A host that cannot be reached yet is no error.

    When the block ends well, what runs is put to sleep; when it ends by an error or is cancelled, it is left running.
    """
    config.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = load_or_make_key(config.home)
    async with AsyncExitStack() as undo:
        store = await open_store(config.home / DATABASE_FILE)
        undo.push_async_callback(_close, store)
        host = HostClient(host_transport)
        undo.push_async_callback(_close, host)
        seal = load_or_make_secret(config.home, SEAL_FILE)
        plane = plane_of(store, host, config.clock, config.rules(), seal=seal)
        await undo.enter_async_context(kept(plane, config))
        yield create_app(plane, key, config.access)


@asynccontextmanager
async def kept(plane: Plane, config: ControlConfig) -> AsyncIterator[None]:
    """Keep a plane true to its host while the block lasts, and do what it does of its own accord; see above."""
    async with AsyncExitStack() as undo:
        undo.push_async_callback(_close, plane.noter)
        undo.push_async_callback(_close, plane.auditor)
        undo.push_async_callback(_close, plane.keyring)
        undo.push_async_callback(_close, plane.chores)
        await _catch_up(plane)
        # Outside of the end's rest: what is not asleep yet goes on being counted.
        await undo.enter_async_context(_background(meter(plane, config.beat_every_s)))
        await undo.enter_async_context(_resting_after(plane, config.stop_within_s))
        works = [
            reap(plane),
            forget(plane),
            watch(plane, config.watch_every_s),
            plane.noter.write(),
            plane.auditor.write(),
            plane.auditor.trim(),
            plane.keyring.note_uses(),
            plane.deadlines.work(config.watch_every_s),
            sweep(plane),
            take_checkpoints(plane),
            build_templates(plane),
        ]
        await undo.enter_async_context(_background(*works))
        yield


async def _catch_up(plane: Plane) -> None:
    """Learn what became of everything while nobody looked."""
    living = {sandbox.id: sandbox for sandbox in await plane.store.living()}
    plane.deadlines.doubt(living.values())
    try:
        differences = await reconcile(plane)
        found = await beat(plane)
        await begin_recoveries(plane)
        for sandbox_id, one in found.items():
            if one.adopted and (sandbox := living.get(SandboxId(sandbox_id))) is not None:
                plane.noter.note("adopted", sandbox, pid=one.pid)
    except TorporError as error:
        _log.warning("could not reconcile at start; the watcher will", error=error.message)
        return
    _log.info("reconciled at start", differences=differences)


@asynccontextmanager
async def _resting_after(plane: Plane, within_s: float) -> AsyncIterator[None]:
    """Put to sleep what runs when the block ends well; an error or a cancellation is not the end that was asked for."""
    yield
    if within_s > 0:
        await put_to_sleep(plane, within_s)


@asynccontextmanager
async def _background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run work for ever while the block lasts; work that fails ends the block with its error."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in work]
        try:
            yield
        finally:
            await end_tasks(*tasks)


async def _close(resource: Closable) -> None:
    await shielded(resource.aclose())
