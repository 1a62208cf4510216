"""What a sandbox's folder tells the next host agent of its machine.

machine.json   the record of its living machine: written once the guest has acknowledged who it is, removed when the
               machine is ended; so what has none is nobody's
paused         there while somebody has paused it
deadline       when the machine ends at the latest, as text: seconds since 1970; none: never
usage.json     what it has used, as it was counted last

All of them appear whole. Only the deadline matters after a loss of power, when no machine lives: the control plane, who
knows it, tells it again.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from torpor.errors import Unsupported
from torpor.kit.files import write_whole
from torpor.kit.procfs import ProcessMark
from torpor.model.ids import SandboxId
from torpor.model.usage import Reading
from torpor.vmm.driver import Trace

# The folder in it with what it came from, or was last frozen into.
BASE = "base"
# The keeper knows the first two by these names too: it imports nothing.
RECORD, DEADLINE, PAUSED, USAGE = "machine.json", "deadline", "paused", "usage.json"
# What the folders of a rollback are called, before the sandbox's id: what it becomes, and what it was.
NEXT, FORMER = "next-", "former-"
_FORMAT: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class MachineRecord:
    """A machine that is a sandbox's since `began`, in seconds after the host's boot.

    `counted`: what the sandbox had used before, less what the machine had.
    """

    sandbox: SandboxId
    trace: Trace
    boot_ms: int
    began: float
    counted: Reading


@dataclass(frozen=True, slots=True)
class Counted:
    """What a sandbox had used at a moment: `at` seconds after the host's boot, when it held `held` bytes of memory
    (None: not measured yet).
    """

    at: float
    cpu_seconds: float
    resident_byte_seconds: float
    held: int | None = None


class _RecordFile(BaseModel):
    format: Literal[1]
    sandbox: str
    pid: int
    started: int
    boot: str
    image_inode: int
    image_bytes: int
    boot_ms: int
    began: float
    counted: Reading


class _UsageFile(BaseModel):
    format: Literal[1]
    counted: Counted


def write_record(folder: Path, record: MachineRecord) -> None:
    """Note a sandbox's machine. Raises OSError."""
    mark, trace = record.trace.process, record.trace
    file = _RecordFile(
        format=_FORMAT,
        sandbox=record.sandbox,
        **asdict(mark),
        image_inode=trace.image_inode,
        image_bytes=trace.image_bytes,
        boot_ms=record.boot_ms,
        began=record.began,
        counted=record.counted,
    )
    write_whole(folder / RECORD, file.model_dump_json().encode(), durable=False)


def read_record(folder: Path) -> MachineRecord | None:
    """Return what is noted of a sandbox's machine; None if nothing is.

    Raises Unsupported for what is no record, OSError where it cannot be told whether there is one.
    """
    try:
        file = _RecordFile.model_validate_json((folder / RECORD).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        raise Unsupported(f"{folder / RECORD} is no record of format {_FORMAT}, which this version reads") from error
    trace = Trace(ProcessMark(file.pid, file.started, file.boot), file.image_inode, file.image_bytes)
    return MachineRecord(SandboxId(file.sandbox), trace, file.boot_ms, file.began, file.counted)


def mark_paused(folder: Path) -> None:
    """Note that somebody has paused the sandbox. Raises OSError."""
    (folder / PAUSED).touch(mode=0o600)


def unmark_paused(folder: Path) -> None:
    """Note that it is to go on. Needs no room on the disk."""
    (folder / PAUSED).unlink(missing_ok=True)


def is_marked_paused(folder: Path) -> bool:
    """Tell whether somebody has paused the sandbox."""
    return (folder / PAUSED).exists()


def write_deadline(folder: Path, deadline: float | None) -> None:
    """Note when the sandbox's machine ends at the latest, in seconds since 1970 (None: never). Raises OSError."""
    if deadline is None:
        (folder / DEADLINE).unlink(missing_ok=True)
    else:
        write_whole(folder / DEADLINE, f"{deadline:.3f}\n".encode(), durable=False)


def read_deadline(folder: Path) -> float | None:
    """Return what `write_deadline` noted; None for what is no time."""
    with suppress(OSError, ValueError):
        deadline = float((folder / DEADLINE).read_text())
        return deadline if math.isfinite(deadline) else None
    return None


def write_usage(folder: Path, counted: Counted) -> None:
    """Note what the sandbox has used. Raises OSError."""
    file = _UsageFile(format=_FORMAT, counted=counted)
    write_whole(folder / USAGE, file.model_dump_json().encode(), durable=False)


def read_usage(folder: Path) -> Counted | None:
    """Return what `write_usage` noted; None if there is nothing that can be read."""
    try:
        return _UsageFile.model_validate_json((folder / USAGE).read_bytes()).counted
    except (OSError, ValidationError):
        return None
