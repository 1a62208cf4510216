"""After a crash: what an earlier server left on this host is found by evidence and removed."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import structlog

from torpor.errors import Busy, Failed
from torpor.host.live import Live
from torpor.host.lock import locked
from torpor.host.sleep import find_sleepers
from torpor.kit.files import sweep
from torpor.storage.layout import Layout
from torpor.storage.snapshots import Snapshots

_log = structlog.get_logger(__name__)
_PATIENCE_S = 10.0


def recover(layout: Layout, snapshots: Snapshots) -> Live:
    """End every machine of this data directory, and remove what it wrote and every draft; return who is here: sleepers.

    A running machine's memory goes with its server, so nothing of it can be kept: its sandbox is found missing and
    marked failed. The caller holds the data directory's lock.
    """
    for pid in machines_of(layout):
        _end(pid)
    _sweep(layout.sandboxes, layout.snapshots, layout.home)
    live = Live()
    sleepers, live.damaged = find_sleepers(layout, snapshots)
    for sleeper in sleepers:
        live.lay_down(sleeper)
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


def machines_of(layout: Layout) -> list[int]:
    """Return the ids of the VMM processes that work on a sandbox of this data directory.

    Evidence is the command line, which names the sandbox's own disk: no record is needed, so none can be missing.
    """
    own = f"{layout.sandboxes}/".encode()
    return [pid for pid in _processes() if _is_vmm(pid, own)]


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _is_vmm(pid: int, own: bytes) -> bool:
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False  # it ended meanwhile
    # Until it has become QEMU the process is the program that starts it, with QEMU's name further back.
    return any(b"qemu-system-" in word for word in argv[:10]) and any(own in word for word in argv)


def _end(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        _log.warning("ending a machine that a former server left", pid=pid)
        signal.pidfd_send_signal(process, signal.SIGKILL)
        if not select.select([process], [], [], _PATIENCE_S)[0]:
            raise Failed(
                f"the process {pid} of a former server does not end", hint="look at it with `ps`, then try again"
            )
    except ProcessLookupError:
        return
    finally:
        os.close(process)
