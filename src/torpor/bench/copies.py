"""What copies of a sandbox take: restored from a snapshot, or forked while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from torpor.bench.figures import Figure, Series
from torpor.bench.in_guest import MemoryWriter
from torpor.bench.life import vmm_floor
from torpor.bench.processes import machines_running, own_memory_mib
from torpor.bench.subject import Subject
from torpor.errors import Unsupported
from torpor.sdk import Sandbox

FORKED = (1, 4, 8)
_DIRTY_MIB = 16
_IDLE_S = 2.0


def restore(subject: Subject, rounds: int) -> Iterator[Figure]:
    """Restore a snapshot into new sandboxes, and run a command in each at once."""
    restored, answered = Series(), Series()
    with subject.sandbox() as sandbox:
        MemoryWriter.begin(sandbox).write(_DIRTY_MIB)
        source = sandbox.snapshot()

        def come_alive() -> Sandbox:
            made = restored.take(lambda: subject.restore(source))
            made.exec("true", check=True)
            return made

        for _ in range(rounds):
            subject.discard([answered.take(come_alive)])
    floor = vmm_floor(subject)
    yield restored.figure("restore", "restore", floor)
    yield answered.figure("restore-exec", "restore + first exec", floor)


def fork(subject: Subject, rounds: int) -> Iterator[Figure]:
    """Fork a sandbox that runs into several, and have all of them answer side by side."""
    with subject.sandbox() as parent:
        for count in FORKED:
            taken = Series()
            for _ in range(rounds):
                parent.exec("true", check=True)
                subject.discard(taken.take(lambda: _answering(parent, count)))  # noqa: B023 - called at once
            floor = vmm_floor(subject) if count == 1 else None
            yield taken.figure(f"fork-{count}", f"fork of {count}, all answering", floor)


def _answering(parent: Sandbox, count: int) -> list[Sandbox]:
    children = parent.fork(count)
    with ThreadPoolExecutor(max_workers=count) as threads:
        list(threads.map(lambda child: child.exec("true", check=True), children))
    return children


def memory(subject: Subject, _rounds: int) -> Iterator[Figure]:
    """Fork a sandbox, have each child run one command, let them idle, and see what memory is each one's own."""
    layout = subject.here().layout
    count = FORKED[-1]
    with subject.sandbox() as parent:
        parent.exec("true", check=True)
        children = _answering(parent, count)
        try:
            time.sleep(_IDLE_S)
            own = [own_memory_mib(pid) for child in children for pid in machines_running(layout, child.id)]
        finally:
            subject.discard(children)
    if len(own) != count or not all(own):
        raise Unsupported("the children's machines cannot all be seen", hint="run it as the user who runs the server")
    yield Figure("child-memory", f"memory of its own of an idle child, of {count}", "MiB", tuple(own))
