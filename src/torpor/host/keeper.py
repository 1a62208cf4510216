"""The keeper: a small process that outlives the server, and ends machines that nobody else would.

It imports nothing but the standard library, and is run by its path, so that an update of the server cannot break one
that runs. Machines are found by the process table, and their sandboxes by the records in the folders of these:

* a machine whose deadline has passed is ended; while a server lives, which does that in better order, a little later;
* while no server lives, one that is noted nowhere is ended: it was being prepared when its server died.

It ends itself when there is neither a server nor a machine. `python keeper.py SANDBOXES ALIVE LOCK`: the folder of the
sandboxes, the file that a server holds a lock of while it lives, and the file that a keeper does.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time

# How often, in seconds, it looks; and how often through the whole process table while a server lives.
_EVERY_S, _SELDOM_S = 1.0, 5.0
# How long, in seconds, a server that lives may take to end a sandbox by its own clock.
_GRACE_S = 10.0
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
                return
        time.sleep(_EVERY_S)


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
    machines = machines_of(sandboxes)
    if not machines:
        return False
    try:
        deadlines = deadlines_of(sandboxes)
    except OSError:
        return True  # nothing can be told, so nothing is ended
    now = time.time()
    for machine in machines:
        deadline = deadlines.get(machine)
        if now >= deadline + (_GRACE_S if server else 0.0) if deadline is not None else not server:
            end(machine)
    return True


def machines_of(sandboxes: str) -> list[Mark]:
    """Return the VMM processes that were started in a folder of a sandbox, by id and start time."""
    own = f"{sandboxes}/".encode()
    found: list[Mark] = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            argv = _read(f"/proc/{name}/cmdline").split(b"\0")
            if any(b"qemu-system-" in word for word in argv[:10]) and any(own in word for word in argv):
                started = started_at(int(name))
                if started is not None:
                    found.append((int(name), started))
    return found


def started_at(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the boot; None if it has ended."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return None if not fields or fields[_STATE] in (b"Z", b"X") else int(fields[_STARTED])


def deadlines_of(sandboxes: str) -> dict[Mark, float]:
    """Return the deadlines of the machines that are noted. Raises OSError if the folder cannot be read."""
    found: dict[Mark, float] = {}
    for name in os.listdir(sandboxes):
        try:
            record = json.loads(_read(f"{sandboxes}/{name}/machine.json"))
            machine = int(record["pid"]), int(record["started"])
        except (ValueError, KeyError, TypeError):
            continue  # a folder without a machine, or a record that is being replaced by another version's
        found[machine] = _deadline(f"{sandboxes}/{name}/deadline")
    return found


def _deadline(path: str) -> float:
    try:
        deadline = float(_read(path))
    except ValueError:
        return float("inf")
    return deadline if deadline == deadline else float("inf")  # noqa: PLR0124 - not a number is no time


def _read(path: str) -> bytes:
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
