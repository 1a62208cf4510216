"""At the start of a host agent: what an earlier one left on this host is found by evidence, and taken over or removed.

A sandbox sleeps if it is marked to, and what it is to sleep in is published. It lives if its machine is on record, and
runs. Every other machine is nobody's, and ended; every other folder is litter. What cannot be read, or does not answer,
is neither: it is left alone, and tried again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from torpor.errors import Busy, Failed, TorporError
from torpor.host.adopt import Found, adopt
from torpor.host.evidence import Finding, State, holds_living, look_at
from torpor.host.live import Live
from torpor.host.lock import locked
from torpor.host.network_notes import slots_noted
from torpor.host.record import FORMER, NEXT, MachineRecord
from torpor.host.sleep import find_sleeper
from torpor.host.unreachable import Unreachable
from torpor.kit.files import remove_tree, sweep
from torpor.kit.procfs import ProcessMark
from torpor.kit.together import together
from torpor.model.ids import SandboxId, is_sandbox_id
from torpor.network.absent import NoNetwork
from torpor.network.contract import Network
from torpor.storage.layout import Layout
from torpor.storage.named_volumes import NamedVolumes
from torpor.storage.snapshots import Snapshots
from torpor.vmm.driver import Place, Survivors

_log = structlog.get_logger(__name__)
# At the start a machine, and all of them together, may take so long to answer: a machine that is well takes some
# milliseconds. Others are waited for when the host agent answers already.
_ANSWER_S, _ALL_ANSWER_S = 3.0, 10.0
_AT_ONCE = 16


@dataclass
class _Evidence:
    """What the folders of sandboxes tell, and what is nobody's folder."""

    found: dict[Path, Finding] = field(default_factory=dict)
    litter: list[Path] = field(default_factory=list)

    def all(self, *states: State) -> Iterable[tuple[Path, Finding]]:
        """Return the folders that are in one of these states."""
        return [(folder, finding) for folder, finding in self.found.items() if finding.state in states]


async def recover(layout: Layout, snapshots: Snapshots, survivors: Survivors, network: Network | None = None) -> Live:
    """Take over what sleeps and what lives in a data directory, and remove everything else; return who is here.

    What cannot be read is left alone, so that somebody can look at it, and so is a machine that does not answer. The
    caller holds the data directory's lock.
    """
    running = await asyncio.to_thread(survivors.below, layout.sandboxes)
    found = await asyncio.to_thread(_look, layout, snapshots, survivors, running)
    stuck = await _end_nobodys(survivors, running, await asyncio.to_thread(_machines_of, survivors, found))
    live = await asyncio.to_thread(_clear_up, layout, snapshots, found, _folders_of(survivors, found, stuck))
    left = Found(survivors, network or NoNetwork(), NamedVolumes(layout))
    await left.network.sweep(await asyncio.to_thread(_slots_noted, layout.sandboxes))
    for folder, finding in found.all(State.OBSCURE):
        live.enter(_out_of_reach(left, folder, None, finding.reason))
    await _adopt_all(live, left, found)
    return live


def _slots_noted(sandboxes: Path) -> set[str]:
    return slots_noted(list(sandboxes.iterdir()))


def _look(layout: Layout, snapshots: Snapshots, survivors: Survivors, running: Collection[ProcessMark]) -> _Evidence:
    """Read the folders. Changes nothing but the names of a rollback that was under way, and marks of sleep that hold
    no more.
    """
    _settle_rollbacks(layout.sandboxes, running)
    evidence = _Evidence()
    for folder in sorted(layout.sandboxes.iterdir()):
        if is_sandbox_id(folder.name):
            evidence.found[folder] = look_at(folder, snapshots, survivors, running)
        else:
            evidence.litter.append(folder)
    evidence.litter += [folder for folder, _ in evidence.all(State.LOST, State.LITTER)]
    return evidence


def _settle_rollbacks(sandboxes: Path, running: Collection[ProcessMark]) -> None:
    """Give sandboxes that were being rolled back their folders again: what they became if that lives, else what they
    were.

    One that has its folder keeps it: the rollback had not happened, or was done.
    """
    for folder in sorted(sandboxes.glob(f"{NEXT}*")):
        own = sandboxes / folder.name.removeprefix(NEXT)
        if not own.exists() and is_sandbox_id(own.name) and holds_living(folder, SandboxId(own.name), running):
            _log.info("a rollback is completed", sandbox=own.name)
            folder.rename(own)
    for folder in sorted(sandboxes.glob(f"{FORMER}*")):
        own = sandboxes / folder.name.removeprefix(FORMER)
        if not own.exists() and is_sandbox_id(own.name):
            _log.info("a rollback is undone", sandbox=own.name)
            folder.rename(own)


def _machines_of(survivors: Survivors, evidence: _Evidence) -> set[ProcessMark]:
    """Return the machines that are somebody's, or may be."""
    kept = {finding.record.trace.process for finding in evidence.found.values() if finding.record is not None}
    for folder, _ in evidence.all(State.OBSCURE):
        kept.update(survivors.below(folder))
    return kept


async def _end_nobodys(
    survivors: Survivors, running: Collection[ProcessMark], kept: Collection[ProcessMark]
) -> list[ProcessMark]:
    """End every machine that is nobody's, and return those that did not end: they are waiting for a disk, mostly."""
    stuck: list[ProcessMark] = []

    async def end(process: ProcessMark) -> None:
        _log.warning("ending a machine that is nobody's", pid=process.pid)
        try:
            await survivors.end(process)
        except (Failed, OSError) as error:
            _log.error("a machine that is nobody's does not end", pid=process.pid, error=str(error))
            stuck.append(process)

    if nobodys := [end(process) for process in running if process not in kept]:
        await together(*nobodys)
    return stuck


def _folders_of(survivors: Survivors, evidence: _Evidence, stuck: list[ProcessMark]) -> set[Path]:
    """Return the folders of litter that a machine is in which did not end."""
    if not stuck:
        return set()
    return {folder for folder in evidence.litter if not set(stuck).isdisjoint(survivors.below(folder))}


def _clear_up(layout: Layout, snapshots: Snapshots, evidence: _Evidence, in_use: Collection[Path]) -> Live:
    """Remove litter, and return who sleeps, and of whom nothing can be used."""
    for folder in evidence.litter:
        if folder not in in_use:
            _log.info("removed what a former server left", sandbox=folder.name)
            remove_tree(folder)
    _sweep(layout.sandboxes, layout.snapshots, layout.named_volumes, layout.home)
    live = Live()
    unusable = evidence.all(State.LOST, State.UNREADABLE)
    live.damaged = {SandboxId(folder.name): finding.reason for folder, finding in unusable}
    for folder, _ in evidence.all(State.ASLEEP):
        _lay_down(live, folder, snapshots)
    for sandbox, reason in live.damaged.items():
        _log.error("nothing can be used of a sandbox", sandbox=sandbox, reason=reason)
    try:
        with locked(layout.bake_lock, what="the folder of templates"):
            _sweep(layout.images, layout.templates)
    except Busy:
        _log.info("a template is being baked; its drafts are left alone")
    return live


def _lay_down(live: Live, folder: Path, snapshots: Snapshots) -> None:
    try:
        live.enter(find_sleeper(folder, snapshots))
    except (TorporError, OSError) as error:
        live.damaged[SandboxId(folder.name)] = f"what it slept in cannot be read: {error}"


def _sweep(*folders: Path) -> None:
    for folder in folders:
        for name in sweep(folder):
            _log.info("removed a draft", folder=folder.name, name=name)


def _out_of_reach(left: Found, folder: Path, record: MachineRecord | None, reason: str) -> Unreachable:
    sandbox = SandboxId(folder.name)
    _log.error("a machine could not be taken over; it is left as it is", sandbox=sandbox, reason=reason)
    return Unreachable(sandbox, Place(sandbox, folder), left.survivors, record, reason, left.network)


async def _adopt_all(live: Live, left: Found, evidence: _Evidence) -> None:
    limit, until = asyncio.Semaphore(_AT_ONCE), time.monotonic() + _ALL_ANSWER_S

    async def one(folder: Path, record: MachineRecord) -> None:
        async with limit:
            within_s = min(_ANSWER_S, until - time.monotonic())
            if within_s > 0:
                await _take_over(live, left, folder, record, within_s)
            else:
                live.enter(_out_of_reach(left, folder, record, "others that do not answer were tried before it"))

    living = [(folder, finding.record) for folder, finding in evidence.all(State.ALIVE) if finding.record is not None]
    if living:
        await together(*(one(folder, record) for folder, record in living))


async def _take_over(live: Live, left: Found, folder: Path, record: MachineRecord, within_s: float) -> None:
    """Take over a sandbox's machine, or note why that cannot be."""
    try:
        live.enter(await adopt(left, folder, record, within_s=within_s))
    except (TorporError, OSError) as error:
        live.enter(_out_of_reach(left, folder, record, str(error)))


@dataclass(frozen=True, slots=True)
class Again:
    """Tries once more to take over what was out of reach; a few at a time, each for up to `within_s` seconds."""

    live: Live
    layout: Layout
    snapshots: Snapshots
    survivors: Survivors
    within_s: float = 30.0
    _limit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(4))

    async def __call__(self, one: Unreachable) -> bool:
        """Return whether that was settled: it was taken over, or sleeps, or has ended, or is somebody else's by now."""
        async with self._limit, self.live.lock(one.id):
            if self.live.whatever(one.id) is not one:
                return True
            folder = one.place.folder
            running = await asyncio.to_thread(self.survivors.below, self.layout.sandboxes)
            finding = await asyncio.to_thread(look_at, folder, self.snapshots, self.survivors, running)
            if finding.state is State.ALIVE and finding.record is not None:
                return await self._adopted(one, finding.record)
            if finding.state is State.OBSCURE:
                one.reason = finding.reason
                return False
            await self._settle(one, finding)
            return True

    async def _adopted(self, one: Unreachable, record: MachineRecord) -> bool:
        try:
            left = Found(self.survivors, one.network, NamedVolumes(self.layout))
            self.live.enter(await adopt(left, one.place.folder, record, within_s=self.within_s))
        except (TorporError, OSError) as error:
            one.reason = str(error)
            return False
        return True

    async def _settle(self, one: Unreachable, finding: Finding) -> None:
        """Note that no machine is the sandbox's any more: it sleeps after all, or there is nothing of it."""
        await one.end()
        self.live.take(one.id)
        if finding.state is State.ASLEEP:
            await asyncio.to_thread(_lay_down, self.live, one.place.folder, self.snapshots)
            return
        self.live.damaged[one.id] = finding.reason or "there is nothing of it that could be used"
        _log.error("nothing can be used of a sandbox", sandbox=one.id, reason=self.live.damaged[one.id])
        if finding.state is not State.UNREADABLE:
            await asyncio.to_thread(remove_tree, one.place.folder)
