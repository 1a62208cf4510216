"""The keeper: a small process that outlives the server, and ends machines that nobody else would.

It imports nothing but the standard library, and is run by its path, so that an update of the server cannot break one
that runs. Machines are found by the process table, and by the records in the folders of their sandboxes:

* a machine whose deadline has passed is ended; while a server lives, which does that in better order, some minutes
  later: it may have been told of a longer life, and not have been able to note it;
* while no server lives, one that is noted nowhere is ended: it was being prepared when its server died. If there is a
  record that cannot be read, it may be that one's, and is left alone.

It ends itself when there is neither a server nor a machine, and removes the machines' control groups then. `python
keeper.py SANDBOXES ALIVE LOCK`: the folder of the sandboxes, the file that a server holds a lock of while it lives, and
the file that a keeper does.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import time

# How often, in seconds, it looks; and how often through the whole process table while a server lives.
_EVERY_S, _SELDOM_S = 1.0, 5.0
# How long, in seconds, a server that lives may take to end a sandbox by its own clock.
_GRACE_S = 300.0
_PROGRAM = b"qemu-system-"
# Where the fields of /proc/<pid>/stat stand behind the program's name.
_STATE, _STARTED = 0, 19

Mark = tuple[int, int]


def main(sandboxes: str, alive: str, own_lock: str) -> None:
    """Look after the machines of a data directory, until nobody is left there. Returns at once if another one does."""
    lock = os.open(own_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    looked_at = 0.0
    while True:
        server = server_lives(alive)
        if not server or time.monotonic() - looked_at >= _SELDOM_S:
            looked_at = time.monotonic()
            if not look(sandboxes, server=server) and not server:
                remove_groups(os.path.join(os.path.dirname(alive), "cgroups"))
                return
        time.sleep(_EVERY_S)


def remove_groups(noted: str) -> None:
    """Remove the control groups of machines that have ended, below the folders that a file names, one a line."""
    for top in _written(noted).decode(errors="replace").splitlines():
        if os.path.basename(top).startswith("torpor-"):
            for group in [*(entry.path for entry in _folders_in(top)), top]:
                with contextlib.suppress(OSError):  # it is gone, or somebody is in it again
                    os.rmdir(group)


def _folders_in(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def server_lives(alive: str) -> bool:
    """Tell whether a server holds its lock."""
    try:
        descriptor = os.open(alive, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def look(sandboxes: str, *, server: bool) -> bool:
    """End what is to be ended now, and return whether there are machines."""
    found = machines_of(sandboxes)
    try:
        deadlines, complete = deadlines_of(sandboxes)
    except OSError:
        return bool(found)  # nothing can be told, so nothing is ended
    now, grace_s = time.time(), _GRACE_S if server else 0.0
    for machine, deadline in deadlines.items():
        if now >= deadline + grace_s:
            end(machine)
    for machine in found:
        if machine not in deadlines and complete and not server:
            end(machine)
    return bool(found or deadlines)


def machines_of(sandboxes: str) -> list[Mark]:
    """Return the VMM processes that were started in a folder of a sandbox, or have one of its files open."""
    own = f"{sandboxes}/".encode()
    found: list[Mark] = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and _runs_vmm(name) and _is_of(name, own):
            started = started_at(int(name))
            if started is not None:
                found.append((int(name), started))
    return found


def _runs_vmm(pid: str) -> bool:
    """Tell whether a process runs a VMM, by its program: its words may say anything."""
    try:
        program = os.path.basename(os.readlink(f"/proc/{pid}/exe".encode()))
    except PermissionError:
        program = _told_by_kernel(f"/proc/{pid}/comm")
    except OSError:
        return False
    return program.startswith(_PROGRAM)


def _is_of(pid: str, own: bytes) -> bool:
    if any(own in word for word in _told_by_kernel(f"/proc/{pid}/cmdline").split(b"\0")):
        return True
    # Its words name its files as they were when it started, and in its own spelling.
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    return any(_open_file(pid, number).startswith(own) for number in numbers)


def _open_file(pid: str, number: str) -> bytes:
    try:
        return os.readlink(f"/proc/{pid}/fd/{number}".encode())
    except OSError:
        return b""  # it is closed by now


def started_at(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the boot; None if it has ended."""
    fields = _told_by_kernel(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return None if not fields or fields[_STATE] in (b"Z", b"X") else int(fields[_STARTED])


def deadlines_of(sandboxes: str) -> tuple[dict[Mark, float], bool]:
    """Return the deadlines of the machines that are noted and live, and whether all that is noted could be read.

    Raises OSError if the folder cannot be read.
    """
    found: dict[Mark, float] = {}
    complete, boot = True, _told_by_kernel("/proc/sys/kernel/random/boot_id").strip().decode()
    for name in os.listdir(sandboxes):
        try:
            record = json.loads(_written(f"{sandboxes}/{name}/machine.json") or "null")
            if record is None:
                continue
            machine = int(record["pid"]), int(record["started"])
            if record["boot"] == boot and started_at(machine[0]) == machine[1]:
                found[machine] = _deadline(f"{sandboxes}/{name}/deadline")
        except (OSError, ValueError, KeyError, TypeError):
            complete = False
    return found, complete


def _deadline(path: str) -> float:
    try:
        deadline = float(_written(path))
    except (OSError, ValueError):
        return float("inf")
    return deadline if deadline == deadline else float("inf")  # noqa: PLR0124 - not a number is no time


def _written(path: str) -> bytes:
    """Return what a file says; nothing if there is none. Raises OSError if that cannot be told."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return b""


def _told_by_kernel(path: str) -> bytes:
    """Return what a file of /proc says; nothing if its process has ended, or does not let us look."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def end(machine: Mark) -> None:
    """Kill a machine, if it is still the one."""
    pid, started = machine
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if started_at(pid) == started:
            signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended by itself
    finally:
        os.close(process)


if __name__ == "__main__":
    main(*sys.argv[1:4])
