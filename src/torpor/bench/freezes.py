"""What it takes to freeze a sandbox: by what it has written, again and again, and on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torpor.bench.figures import Figure, Floor, Series, percentile
from torpor.bench.in_guest import MemoryWriter, ticking
from torpor.bench.machine import used_disk
from torpor.bench.subject import Local, Subject
from torpor.sdk import Sandbox, Snapshot

MIB = 1024 * 1024
# MiB that the guest writes before each freeze. 0: nothing but what it does by itself.
HIBERNATED_MIB = (0, 1, 16, 64, 256)
SNAPSHOT_MIB = (0, 16, 64)
_PAUSE_MIB = 16
_SEEN_ROUNDS = 8
_TICKS_AROUND = 40
CHECKPOINTS = 30
_CHECKPOINT_MIB = 4
_EDGE = 3
_CHILD_MIB = 32
_SETTLED_S, _SETTLE_ROUNDS = 0.3, 20


@dataclass
class _Freezes:
    """What was seen of freezes with one amount written. `plain`: milliseconds of a plain write of as many bytes."""

    took: Series = field(default_factory=Series)
    pauses: list[float] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)

    def note(self, snapshot: Snapshot, local: Local | None) -> None:
        """Note what the server says of the newest one, and write as many bytes plainly."""
        self.pauses.append(snapshot.pause_ms)
        self.written.append(snapshot.written_bytes)
        if local:
            self.plain.append(local.floors.write(snapshot.written_bytes))

    def figures(self, verb: str, mib: int) -> Iterator[Figure]:
        """Return the figures of one amount."""
        at = percentile(self.written, 50) / MIB
        floor = Floor("write + fsync of the same bytes", tuple(self.plain)) if self.plain else None
        what = f"{mib} MiB dirty" if mib else "nothing written"
        note = f"{at:.1f} MiB written, the guest's own included"
        yield Figure(f"{verb}-{mib}", f"{verb}, {what}", "ms", tuple(self.took), floor, at, note)
        yield Figure(f"{verb}-{mib}-pause", f"{verb}, {what}: the guest stands still", "ms", tuple(self.pauses))
        if self.plain and not mib:
            rest = tuple(took - plain for took, plain in zip(self.took, self.plain, strict=True))
            yield Figure(f"{verb}-fixed", f"{verb}, fixed part: all but writing its data", "ms", rest)


def hibernate(subject: Subject, rounds: int) -> Iterator[Figure]:
    """Hibernate a sandbox right after it was woken, with so much written since."""
    for mib in HIBERNATED_MIB:
        yield from _frozen(subject, mib, rounds, "hibernate")


def snapshot(subject: Subject, rounds: int) -> Iterator[Figure]:
    """Take a snapshot of a sandbox that runs, with so much written since the one before."""
    for mib in SNAPSHOT_MIB:
        yield from _frozen(subject, mib, rounds, "snapshot")
    yield from _seen_from_outside(subject, min(rounds, _SEEN_ROUNDS))


def _frozen(subject: Subject, mib: int, rounds: int, verb: str) -> Iterator[Figure]:
    seen = _Freezes()
    with subject.sandbox() as sandbox:
        write = _writing(sandbox, mib)
        freeze, undo = _verbs(subject, sandbox, verb)
        for number in range(rounds + 1):
            write()
            taken = freeze(seen.took)
            seen.note(taken, subject.local)
            undo(taken)
            if number == 0:
                seen = _Freezes()  # the first also has all that was written since the create
    yield from seen.figures(verb, mib)


def _writing(sandbox: Sandbox, mib: int) -> Callable[[], None]:
    """Return what makes `mib` MiB of a guest dirty. For 0 nothing is run in it, as a command writes memory too."""
    if not mib:
        return lambda: None
    writer = MemoryWriter.begin(sandbox)
    return lambda: writer.write(mib)


def _verbs(
    subject: Subject, sandbox: Sandbox, verb: str
) -> tuple[Callable[[Series], Snapshot], Callable[[Snapshot], object]]:
    """Return what freezes and notes how long that took, and what makes ready for the next time."""

    def hibernated(took: Series) -> Snapshot:
        took.take(sandbox.hibernate)
        return subject.newest(sandbox)

    if verb == "hibernate":
        return hibernated, lambda _: sandbox.wake()
    return lambda took: took.take(sandbox.snapshot), Snapshot.delete


def _seen_from_outside(subject: Subject, rounds: int) -> Iterator[Figure]:
    """Measure for how long a guest's output fails to appear, with a snapshot and without."""
    gaps: list[float] = []
    quiet: list[float] = []
    with subject.sandbox() as sandbox:
        writer = MemoryWriter.begin(sandbox)
        with ticking(sandbox) as ticks:
            for _ in range(rounds + 1):
                writer.write(_PAUSE_MIB)
                begin = ticks.wait_for(_TICKS_AROUND)
                taken = sandbox.snapshot()
                middle = ticks.wait_for(_TICKS_AROUND)
                end = ticks.wait_for(_TICKS_AROUND)
                gaps.append(ticks.longest_gap_ms(begin, middle))
                quiet.append(ticks.longest_gap_ms(middle, end))
                taken.delete()
    floor = Floor("without a snapshot", tuple(quiet[1:]))
    title = f"snapshot, {_PAUSE_MIB} MiB dirty: its output stops"
    yield Figure("snapshot-16-gap", title, "ms", tuple(gaps[1:]), floor)


def checkpoints(subject: Subject, rounds: int) -> Iterator[Figure]:
    """Take many checkpoints in a row and keep them, and restore the first and the last."""
    took = Series()
    with subject.sandbox() as sandbox:
        writer = MemoryWriter.begin(sandbox)
        kept: list[Snapshot] = []
        for _ in range(CHECKPOINTS + 1):
            writer.write(_CHECKPOINT_MIB)
            kept.append(took.take(sandbox.snapshot))
        # The very first has all that was written since the create, and is none of the row.
        row, kept = Series(took[1:]), kept[1:]
        first, last = Series(), Series()
        for _ in range(rounds):
            for restored, source in ((first, kept[0]), (last, kept[-1])):
                subject.discard([restored.take(lambda: subject.restore(source))])  # noqa: B023 - called at once
    yield from _of_a_row(row)
    floor = Floor("restore of checkpoint 1", tuple(first))
    yield first.figure("checkpoint-restore-first", "restore of checkpoint 1")
    yield last.figure("checkpoint-restore-last", f"restore of checkpoint {CHECKPOINTS}", floor)


def _of_a_row(row: Series) -> Iterator[Figure]:
    first, last = Series(row[:_EDGE]), Series(row[-_EDGE:])
    yield row.figure("checkpoints", f"{len(row)} checkpoints, {_CHECKPOINT_MIB} MiB dirty each")
    yield first.figure("checkpoint-first", f"checkpoints 1 to {_EDGE}")
    floor = Floor(f"checkpoints 1 to {_EDGE}", tuple(first))
    yield last.figure("checkpoint-last", f"checkpoints {len(row) - _EDGE + 1} to {len(row)}", floor)


def disk(subject: Subject, rounds: int) -> Iterator[Figure]:
    """Fork a sandbox, let the child write memory and a file, hibernate it, and see what that takes up on disk."""
    local = subject.here()
    taken: list[float] = []
    changed: list[float] = []
    with subject.sandbox() as parent:
        writer = MemoryWriter.begin(parent)
        writer.write(1)
        for _ in range(rounds):
            child = parent.fork()
            try:
                before = _settled(local)
                changed.append(_change(subject, child) / MIB)
                taken.append((_settled(local) - before) / MIB)
            finally:
                subject.discard([child])
    floor = Floor("the bytes it changed", tuple(changed))
    key = "child-disk" if local.machine.shares_blocks else "child-disk-copied"
    yield Figure(key, "disk of a hibernated child", "MiB", tuple(taken), floor)


def _change(subject: Subject, child: Sandbox) -> int:
    """Let a child change memory and disk, hibernate it, and return how many bytes of both it changed."""
    MemoryWriter(child).write(_CHILD_MIB)
    child.exec(f"head -c {_CHILD_MIB * MIB} /dev/urandom >/var/tmp/blob && sync", check=True)
    child.hibernate()
    return subject.newest(child).written_bytes + _CHILD_MIB * MIB


def _settled(local: Local) -> int:
    """Return the disk in use once the file system has given back what was deleted before."""
    used = used_disk(local.layout.data)
    for _ in range(_SETTLE_ROUNDS):
        time.sleep(_SETTLED_S)
        before, used = used, used_disk(local.layout.data)
        if before == used:
            break
    return used
