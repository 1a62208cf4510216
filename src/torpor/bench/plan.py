"""What can be measured, how often, and what of it one run measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torpor.bench import copies, freezes, jail, lasting, life, neighbours, slots, streams, transfers
from torpor.bench.figures import Figure
from torpor.bench.subject import Subject
from torpor.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Measure:
    """Something that is measured. `rounds`: how often, and `quick` how often at least. `local`: on the server's machine
    only.
    """

    title: str
    take: Callable[[Subject, int], Iterator[Figure]]
    rounds: int
    quick: int
    local: bool = False


def _floors(subject: Subject, rounds: int) -> Iterator[Figure]:
    return subject.here().floors.figures(rounds)


# In the order they are taken: the server is looked at before it has worked.
MEASURES: Mapping[str, Measure] = {
    "server": Measure("memory of the idle server", transfers.idle, 1, 1, local=True),
    "floors": Measure("bare VMM start, plain writes", _floors, 10, 3, local=True),
    "jail": Measure("VMM start with its jail and limits, and without", jail.jail, 40, 10, local=True),
    "create": Measure("create, first command, delete", life.create, 100, 10),
    "slots": Measure("network slots, opened and made", slots.slots, 50, 10, local=True),
    "exec": Measure("one command after another", life.warm_exec, 200, 30),
    "first-byte": Measure("first byte of a stream, beside the channel's", streams.first_byte, 100, 20, local=True),
    "output": Measure("100 MB of output, and what that takes in memory", streams.output, 3, 1),
    "streams": Measure("50 streams at once", streams.at_once, 2, 1),
    "hibernate": Measure("hibernate, by what was written", freezes.hibernate, 10, 3),
    "wake": Measure("wake, and the first command", life.wake, 30, 5),
    "asleep": Measure("what a hibernated sandbox holds", life.asleep, 5, 2, local=True),
    "snapshot": Measure("snapshot, by what was written, and its pause", freezes.snapshot, 10, 3),
    "restore": Measure("restore, and the first command", copies.restore, 20, 4),
    "fork": Measure("fork of 1, 4 and 8, all answering", copies.fork, 8, 2),
    "memory": Measure("memory of an idle child", copies.memory, 1, 1, local=True),
    "disk": Measure("disk of a hibernated child", freezes.disk, 3, 1, local=True),
    "checkpoints": Measure("30 checkpoints in a row, and back", freezes.checkpoints, 8, 2),
    "burst": Measure("50 creates at once", life.burst, 1, 1),
    "files": Measure("files up and down", transfers.files, 3, 1),
    "restart": Measure("restart of a killed server with 120 sandboxes", lasting.restart, 3, 1, local=True),
    "neighbours": Measure("exec and API, alone and beside four hostile sandboxes", neighbours.neighbours, 300, 20),
    "duty": Measure("books of a sandbox that works a tenth of the time", lasting.duty, 30, 3),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Which measures one run takes, by name in their order, and with how many rounds each."""

    rounds: Mapping[str, int]


def plan(only: str | None = None, n: int | None = None, *, quick: bool = False) -> Plan:
    """Return the plan for a command line: `only` are names with commas, `n` replaces every number of rounds.

    Raises InvalidRequest for a name that is none.
    """
    wanted = list(MEASURES) if only is None else [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in MEASURES]
    if unknown or not wanted:
        what = f"--only does not know {', '.join(unknown)}" if unknown else "--only names nothing"
        raise InvalidRequest(what, hint=f"there is {', '.join(MEASURES)}")
    return Plan(
        {name: n or (each.quick if quick else each.rounds) for name, each in MEASURES.items() if name in wanted}
    )
