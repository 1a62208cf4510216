"""What the folder of a sandbox tells of it, when no server that lives knows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import structlog

from torpor.errors import TorporError, Unsupported
from torpor.host.record import MachineRecord, read_record
from torpor.host.sleep import is_marked, sleeps, unmark
from torpor.kit.procfs import ProcessMark, mark_of
from torpor.model.ids import SandboxId
from torpor.storage.snapshots import Snapshots
from torpor.vmm.driver import Survivors

_log = structlog.get_logger(__name__)
_LOST = "its machine ended while no server ran, or with the host"


class State(Enum):
    """How a sandbox is found."""

    ASLEEP = "it sleeps"
    ALIVE = "its machine is on record, and runs"
    OBSCURE = "a machine runs, and what is noted of it cannot be read"
    UNREADABLE = "no machine runs, and what it was cannot be read"
    LOST = "its machine is on record, and has ended"
    LITTER = "it never came to be"


@dataclass(frozen=True, slots=True)
class Finding:
    """How a sandbox is found, with the reason where that is bad, and the record of its machine where there is one."""

    state: State
    reason: str = ""
    record: MachineRecord | None = None


def look_at(folder: Path, snapshots: Snapshots, survivors: Survivors, running: Collection[ProcessMark]) -> Finding:
    """Tell what the folder of a sandbox says. `running`: the machines that were found by the process table.

    Changes nothing but a mark of sleep that holds no more. What cannot be read is no evidence of an end.
    """
    try:
        if sleeps(folder, snapshots):
            return Finding(State.ASLEEP)
        if is_marked(folder):
            _log.info("a hibernation did not come about", sandbox=folder.name)
            unmark(folder)
    except (TorporError, OSError) as error:
        obscure = bool(survivors.below(folder))
        reason = f"what it slept in cannot be read: {error}"
        return Finding(State.OBSCURE if obscure else State.UNREADABLE, reason)
    return _by_record(folder, survivors, running)


def _by_record(folder: Path, survivors: Survivors, running: Collection[ProcessMark]) -> Finding:
    try:
        record = read_record(folder)
    except Unsupported as error:
        return Finding(State.OBSCURE if survivors.below(folder) else State.LOST, error.message)
    except OSError as error:
        obscure = bool(survivors.below(folder))
        return Finding(State.OBSCURE if obscure else State.UNREADABLE, f"its record cannot be read: {error}")
    if record is None:
        return Finding(State.LITTER)
    if runs(record, folder.name, running):
        return Finding(State.ALIVE, record=record)
    return Finding(State.LOST, _LOST)


def runs(record: MachineRecord, sandbox: str, running: Collection[ProcessMark]) -> bool:
    """Tell whether the machine on record is the sandbox's and lives, whether or not the process table shows it as a
    machine.
    """
    process = record.trace.process
    return record.sandbox == sandbox and (process in running or mark_of(process.pid) == process)


def holds_living(folder: Path, sandbox: SandboxId, running: Collection[ProcessMark]) -> bool:
    """Tell whether a folder has the record of a sandbox's machine that lives, as far as that can be read."""
    try:
        record = read_record(folder)
    except (Unsupported, OSError):
        return False
    return record is not None and runs(record, sandbox, running)
