"""At the start of a host agent: what an earlier one left on this host is found by evidence, and taken over or removed.

A sandbox sleeps if it is marked to, and what it is to sleep in is published. It lives if its machine is on record, and
runs. Every other machine is nobody's, and ended; every other folder is litter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from torpor.errors import Busy, TorporError, Unsupported
from torpor.host.adopt import adopt
from torpor.host.live import Incarnation, Live
from torpor.host.lock import locked
from torpor.host.record import FORMER, NEXT, MachineRecord, read_record
from torpor.host.sleep import find_sleeper, is_marked, sleeps, unmark
from torpor.kit.files import remove_tree, sweep
from torpor.kit.procfs import ProcessMark
from torpor.model.ids import SandboxId, is_sandbox_id
from torpor.storage.layout import Layout
from torpor.storage.snapshots import Snapshots
from torpor.vmm.driver import Survivors

_log = structlog.get_logger(__name__)
_LOST = "its machine ended while no server ran, or with the host"


@dataclass
class _Evidence:
    """What the folders of sandboxes tell: which sleep, which live, of which nothing can be used, and why."""

    asleep: list[Path] = field(default_factory=list)
    alive: dict[Path, MachineRecord] = field(default_factory=dict)
    unreadable: dict[SandboxId, str] = field(default_factory=dict)
    lost: dict[SandboxId, str] = field(default_factory=dict)
    litter: list[Path] = field(default_factory=list)


async def recover(layout: Layout, snapshots: Snapshots, survivors: Survivors) -> Live:
    """Take over what sleeps and what lives in a data directory, and remove everything else; return who is here.

    What cannot be read is left alone, so that somebody can look at it. The caller holds the data directory's lock.
    Raises Failed if a machine that is nobody's does not end.
    """
    running = await asyncio.to_thread(survivors.below, layout.sandboxes)
    found = await asyncio.to_thread(_look, layout, snapshots, running)
    await _end_all_but(survivors, running, [record.trace.process for record in found.alive.values()])
    live = await asyncio.to_thread(_clear_up, layout, snapshots, found)
    for incarnation in await asyncio.gather(*(_adopted(live, survivors, *each) for each in found.alive.items())):
        if incarnation is not None:
            live.add(incarnation)
    return live


def _look(layout: Layout, snapshots: Snapshots, running: Collection[ProcessMark]) -> _Evidence:
    """Read the folders. Changes nothing but the names of a rollback that was under way, and marks of sleep that hold
    no more.
    """
    _settle_rollbacks(layout.sandboxes, running)
    found = _Evidence()
    for folder in sorted(layout.sandboxes.iterdir()):
        if not is_sandbox_id(folder.name):
            found.litter.append(folder)
            continue
        sandbox = SandboxId(folder.name)
        try:
            asleep = sleeps(folder, snapshots)
        except (TorporError, OSError) as error:
            found.unreadable[sandbox] = f"what it slept in cannot be read: {error}"
            continue
        if asleep:
            found.asleep.append(folder)
            continue
        if is_marked(folder):
            _log.info("a hibernation did not come about", sandbox=sandbox)
            unmark(folder)
        _look_for_machine(folder, sandbox, running, found)
    return found


def _look_for_machine(folder: Path, sandbox: SandboxId, running: Collection[ProcessMark], found: _Evidence) -> None:
    try:
        record = read_record(folder)
    except Unsupported as error:
        found.lost[sandbox] = error.message
    else:
        if record is not None and _runs(record, sandbox, running):
            found.alive[folder] = record
            return
        if record is not None:
            found.lost[sandbox] = _LOST
    found.litter.append(folder)


def _runs(record: MachineRecord, sandbox: str, running: Collection[ProcessMark]) -> bool:
    return record.sandbox == sandbox and record.trace.process in running


def _settle_rollbacks(sandboxes: Path, running: Collection[ProcessMark]) -> None:
    """Give sandboxes that were being rolled back their folders again: what they became if that lives, else what they
    were.

    One that has its folder keeps it: the rollback had not happened, or was done.
    """
    for folder in sorted(sandboxes.glob(f"{NEXT}*")):
        own = sandboxes / folder.name.removeprefix(NEXT)
        if not own.exists() and is_sandbox_id(own.name) and _holds_living(folder, own.name, running):
            _log.info("a rollback is completed", sandbox=own.name)
            folder.rename(own)
    for folder in sorted(sandboxes.glob(f"{FORMER}*")):
        own = sandboxes / folder.name.removeprefix(FORMER)
        if not own.exists() and is_sandbox_id(own.name):
            _log.info("a rollback is undone", sandbox=own.name)
            folder.rename(own)


def _holds_living(folder: Path, sandbox: str, running: Collection[ProcessMark]) -> bool:
    try:
        record = read_record(folder)
    except Unsupported:
        return False
    return record is not None and _runs(record, sandbox, running)


async def _end_all_but(survivors: Survivors, running: Collection[ProcessMark], kept: Collection[ProcessMark]) -> None:
    nobodys = [process for process in running if process not in kept]
    for process in nobodys:
        _log.warning("ending a machine that is nobody's", pid=process.pid)
    await asyncio.gather(*(survivors.end(process) for process in nobodys))


def _clear_up(layout: Layout, snapshots: Snapshots, found: _Evidence) -> Live:
    """Remove litter, and return who sleeps, and of whom nothing can be used."""
    for folder in found.litter:
        _log.info("removed what a former server left", sandbox=folder.name)
        remove_tree(folder)
    _sweep(layout.sandboxes, layout.snapshots, layout.home)
    live = Live()
    live.damaged = found.unreadable | found.lost
    for folder in found.asleep:
        try:
            live.lay_down(find_sleeper(folder, snapshots))
        except (TorporError, OSError) as error:
            live.damaged[SandboxId(folder.name)] = f"what it slept in cannot be read: {error}"
    for sandbox, reason in live.damaged.items():
        _log.error("nothing can be used of a sandbox", sandbox=sandbox, reason=reason)
    try:
        with locked(layout.bake_lock, what="the folder of templates"):
            _sweep(layout.images, layout.templates)
    except Busy:
        _log.info("a template is being baked; its drafts are left alone")
    return live


def _sweep(*folders: Path) -> None:
    for folder in folders:
        for name in sweep(folder):
            _log.info("removed a draft", folder=folder.name, name=name)


async def _adopted(live: Live, survivors: Survivors, folder: Path, record: MachineRecord) -> Incarnation | None:
    """Take over a sandbox's machine; None, with the reason noted and its folder removed, if that cannot be."""
    try:
        incarnation = await adopt(survivors, folder, record)
    except (TorporError, OSError) as error:
        _log.error("a machine was not taken over", sandbox=record.sandbox, error=str(error))
        live.damaged[record.sandbox] = str(error)
        await asyncio.to_thread(remove_tree, folder)
        return None
    _log.info("took over a machine", sandbox=record.sandbox, pid=incarnation.machine.pid, paused=incarnation.paused)
    return incarnation
