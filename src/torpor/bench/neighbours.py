"""What a sandbox and the server notice of neighbours that take whatever they can get."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from torpor.bench.figures import Figure, Floor, Series
from torpor.bench.subject import Subject
from torpor.kit.priority import priority
from torpor.sdk import Sandbox

# What each of the four does for ever. All of it is left behind by a shell, which returns at once.
HOSTILE: Mapping[str, str] = {
    "a loop on every processor": "for cpu in $(seq $(nproc)); do (while :; do :; done) & done; wait",
    "a fork bomb": "bomb() { while :; do bomb & done; }; bomb",
    "a full disk, again and again": "while :; do dd if=/dev/zero of=/root/fill bs=1M; rm -f /root/fill; done",
    "all memory, again and again": "while :; do tail /dev/zero; done",
}
_WARM_UP = 10
# What a server that root runs has. A client is elsewhere, mostly, and does not share its processors with guests: with
# less, this one would wait for its turn longer than for the answer.
_PRIORITY = -10


def neighbours(subject: Subject, rounds: int) -> Iterator[Figure]:
    """Take one command after another in a sandbox that is alone, and then beside four that hold nothing back."""
    with priority(_PRIORITY), subject.sandbox() as sandbox:
        quiet_exec, quiet_api = _taken(sandbox, rounds)
        with ThreadPoolExecutor(max_workers=len(HOSTILE)) as threads:
            made = list(threads.map(lambda _: subject.create(), HOSTILE))
        try:
            for one, script in zip(made, HOSTILE.values(), strict=True):
                one.exec(f"setsid bash -c '{script}' </dev/null >/dev/null 2>&1 &", check=True)
            loud_exec, loud_api = _taken(sandbox, rounds)
        finally:
            subject.discard(made)
    note = "; ".join(HOSTILE)
    yield quiet_exec.figure("neighbours-quiet-exec", "exec true, alone")
    yield loud_exec.figure("neighbours-exec", "exec true beside four hostile", _alone(quiet_exec), note=note)
    yield quiet_api.figure("neighbours-quiet-api", "GET of a sandbox, alone")
    yield loud_api.figure("neighbours-api", "GET of a sandbox beside four hostile", _alone(quiet_api))


def _alone(series: Series) -> Floor:
    return Floor("alone", tuple(series))


def _taken(sandbox: Sandbox, rounds: int) -> tuple[Series, Series]:
    """Return the times of a command, and of a question that the server answers without its guest."""
    commands, questions = Series(), Series()
    for _ in range(_WARM_UP):
        sandbox.exec("true", check=True)
    for _ in range(rounds):
        commands.take(lambda: sandbox.exec("true", check=True))
        questions.take(sandbox.refresh)
    return commands, questions
