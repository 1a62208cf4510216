"""How long it takes until a sandbox is there, answers, sleeps and is back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from torpor.bench.figures import Figure, Floor, Series
from torpor.bench.machine import available_memory
from torpor.bench.processes import machines_running, resident_mib
from torpor.bench.subject import Subject
from torpor.errors import Unsupported
from torpor.sdk import Sandbox

MIB = 1024 * 1024
_WARM_UP = 5
_BURST = 50
# What one more machine may take at once, so that a burst does not push the host into a corner: a wide guess.
_MACHINE_BYTES, _RESERVE_BYTES = 192 * MIB, 1024 * MIB


def vmm_floor(subject: Subject) -> Floor | None:
    """Return the start of a bare VMM; None where it cannot be measured."""
    return subject.local.floors.vmm if subject.local else None


def create(subject: Subject, rounds: int) -> Iterator[Figure]:
    """Make a sandbox, run one command in it, and delete it; again and again."""
    made, first, deleted = Series(), Series(), Series()
    for _ in range(rounds):
        sandbox = made.take(subject.create)
        try:
            first.take(lambda: sandbox.exec("true", check=True))  # noqa: B023 - called at once
        finally:
            deleted.take(sandbox.delete)
    yield made.figure("create", "create", vmm_floor(subject))
    yield first.figure("create-exec", "first exec true after a create")
    yield deleted.figure("delete", "delete")


def warm_exec(subject: Subject, rounds: int) -> Iterator[Figure]:
    """Run one command after another in one sandbox."""
    taken = Series()
    with subject.sandbox() as sandbox:
        for _ in range(_WARM_UP):
            sandbox.exec("true", check=True)
        for _ in range(rounds):
            taken.take(lambda: sandbox.exec("true", check=True))
    yield taken.figure("exec", "exec true, warm")


def wake(subject: Subject, rounds: int) -> Iterator[Figure]:
    """Wake a sandbox from hibernation, and run a command in it at once."""
    woken, answered = Series(), Series()
    with subject.sandbox() as sandbox:
        for _ in range(rounds):
            sandbox.exec("true", check=True)
            sandbox.hibernate()
            answered.take(lambda: (woken.take(sandbox.wake), sandbox.exec("true", check=True)))
    floor = vmm_floor(subject)
    yield woken.figure("wake", "wake", floor)
    yield answered.figure("wake-exec", "wake + first exec", floor)


def asleep(subject: Subject, rounds: int) -> Iterator[Figure]:
    """See what a hibernated sandbox still has on its machine."""
    layout = subject.here().layout
    processes: list[float] = []
    memory: list[float] = []
    with subject.sandbox() as sandbox:
        for _ in range(rounds):
            sandbox.wake()
            awake = _seen(sandbox, machines_running(layout, sandbox.id))
            sandbox.hibernate()
            pids = {*awake, *machines_running(layout, sandbox.id)}
            resident = [resident_mib(pid) for pid in pids]
            processes.append(float(sum(mib > 0 for mib in resident)))
            memory.append(sum(resident))
    yield Figure("asleep-processes", "processes of a hibernated sandbox", "", tuple(processes))
    yield Figure("asleep-memory", "resident memory of a hibernated sandbox", "MiB", tuple(memory))


def _seen(sandbox: Sandbox, pids: list[int]) -> list[int]:
    """Return the processes of a sandbox that is awake. Raises Unsupported if none can be seen, which proves nothing."""
    if not pids:
        raise Unsupported(
            f"the machine of {sandbox.id} cannot be seen by this user", hint="run it as the user who runs the server"
        )
    return pids


def burst(subject: Subject, _rounds: int) -> Iterator[Figure]:
    """Make many sandboxes at once, as many as the free memory holds."""
    count = burst_size(available_memory())
    each = Series()
    made: list[Sandbox] = []
    started = time.perf_counter()
    try:
        with ThreadPoolExecutor(max_workers=count) as threads:
            made = list(threads.map(lambda _: each.take(subject.create), range(count)))
        whole = (time.perf_counter() - started) * 1000
    finally:
        subject.discard(made)
    note = "" if count == _BURST else f"{count}, as this machine's memory holds no more"
    yield each.figure("burst-create", f"each of {count} creates at once", note=note)
    yield Figure("burst", f"until all {count} run", "ms", (whole,), note=note)


def burst_size(free_bytes: int) -> int:
    """Return how many sandboxes a burst makes on a machine with so much memory free."""
    return min(_BURST, max(1, (free_bytes - _RESERVE_BYTES) // _MACHINE_BYTES))
