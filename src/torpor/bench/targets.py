"""What each figure is to reach, on two cores under emulation with a guest of 512 MiB."""

from __future__ import annotations

from collections.abc import Mapping

from torpor.bench.figures import Figure, Target

# The statistic of a figure, by its key. Milliseconds, MiB, MB/s, points of a percentage or a number of processes, as
# the figure has it.
TARGETS: Mapping[str, tuple[Target, ...]] = {
    "server-idle": (Target("most", 120),),
    "jail-cost": (Target("p50", 25),),
    "slot-open": (Target("p50", 5),),
    "create": (Target("p50", 130), Target("p99", 250)),
    "exec": (Target("p50", 20),),
    "stream-first": (Target("ratio", 1.5),),
    "stream-client": (Target("most", 64),),
    "stream-server": (Target("most", 64),),
    "stream-vmm": (Target("most", 64),),
    "stream-agent": (Target("most", 64),),
    "streams-lost": (Target("most", 0),),
    "hibernate-fixed": (Target("p50", 60),),
    "hibernate-64": (Target("ratio", 1.5),),
    "wake": (Target("p50", 150),),
    "wake-exec": (Target("p50", 400),),
    "snapshot-fixed": (Target("p50", 60),),
    "snapshot-64": (Target("ratio", 1.5),),
    "snapshot-16-pause": (Target("p50", 100),),
    "fork-8": (Target("p50", 1500),),
    "child-memory": (Target("most", 70),),
    "child-disk": (Target("ratio", 1.2),),
    "checkpoint-last": (Target("ratio", 1.3),),
    "checkpoint-restore-last": (Target("ratio", 1.3),),
    "asleep-processes": (Target("most", 0),),
    "asleep-memory": (Target("most", 0),),
    "upload": (Target("p50", 40, at_least=True),),
    "download": (Target("p50", 40, at_least=True),),
    "files-client": (Target("most", 64),),
    "files-server": (Target("most", 64),),
    "files-vmm": (Target("most", 64),),
    "restart": (Target("most", 3000),),
    "neighbours-exec": (Target("p99-ratio", 4),),
    "neighbours-api": (Target("p99-ratio", 2),),
    "duty": (Target("most", 2),),
}


def targets_of(figure: Figure) -> tuple[Target, ...]:
    """Return what a figure is to reach; nothing for one that has no aim."""
    return TARGETS.get(figure.key, ())
