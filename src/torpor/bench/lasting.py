"""What outlasts the server, and whether its books are right: restarts after a crash, and a run of known duty."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from torpor.bench.figures import Figure, Series
from torpor.bench.life import burst_size
from torpor.bench.machine import available_memory
from torpor.bench.processes import machines_running
from torpor.bench.subject import Local, Subject
from torpor.errors import Failed, Unsupported
from torpor.sdk import Sandbox

_RUNNING, _ASLEEP = 20, 100
_AT_ONCE = 4
# One turn of an agent that works for a tenth of its time, in seconds.
_TURN_S = 20.0
_WORK = "import time; end = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"


def restart(subject: Subject, rounds: int) -> Iterator[Figure]:
    """Kill the server with many sandboxes on it and start it again; again and again."""
    local = subject.here()
    if local.restart is None:
        raise Unsupported("a server that others use is not killed", hint="stop it, and let the benchmark start one")
    running = min(_RUNNING, burst_size(available_memory()))
    ready = Series()
    made: list[Sandbox] = []
    try:
        _fill(subject, made, running)
        awake, asleep = made[:running], made[running:]
        pids = _machines(local, awake)
        for _ in range(rounds):
            ready.take(local.restart)
            _check(subject, awake, asleep)
            if _machines(local, awake) != pids:
                raise Failed("a machine was not taken over by the server that was started")
    finally:
        subject.discard(made)
    note = f"{running} running, {_ASLEEP} hibernated"
    yield ready.figure("restart", "start of the server after kill -9", note=note)


def _fill(subject: Subject, made: list[Sandbox], running: int) -> None:
    """Make sandboxes, some of which stay awake, and put them where they are found also when this is cut short."""

    def one(number: int) -> None:
        sandbox = subject.create()
        made.append(sandbox)
        sandbox.exec("echo here >/root/here", check=True)
        if number >= running:
            sandbox.hibernate()

    with ThreadPoolExecutor(max_workers=_AT_ONCE) as threads:
        list(threads.map(one, range(running + _ASLEEP)))
    made.sort(key=lambda sandbox: sandbox.refresh().state != "running")


def _machines(local: Local, sandboxes: list[Sandbox]) -> list[list[int]]:
    return [machines_running(local.layout, sandbox.id) for sandbox in sandboxes]


def _check(subject: Subject, awake: list[Sandbox], asleep: list[Sandbox]) -> None:
    """See that each is as it was, and that those that run answer."""
    states = {sandbox.id: sandbox.state for sandbox in Sandbox.iterate(client=subject.client)}
    wrong = [one.id for one in awake if states.get(one.id) != "running"]
    wrong += [one.id for one in asleep if states.get(one.id) != "hibernated"]
    if wrong:
        raise Failed(f"after the restart {len(wrong)} sandboxes are not what they were, {wrong[0]} is one of them")
    for sandbox in awake:
        sandbox.exec("cat /root/here", check=True)


def duty(subject: Subject, rounds: int) -> Iterator[Figure]:
    """Let a sandbox work for a tenth of the time and sleep between, and compare its books with a watch."""
    awake_s = 0.0
    with subject.sandbox() as sandbox:
        sandbox.hibernate()
        since, begun = datetime.now(UTC), time.monotonic()
        for turn in range(rounds):
            sandbox.wake()
            woken = time.monotonic()
            sandbox.exec(["python3", "-c", _WORK], check=True)
            sandbox.hibernate()
            awake_s += time.monotonic() - woken
            time.sleep(max(0.0, begun + (turn + 1) * _TURN_S - time.monotonic()))
        took_s = time.monotonic() - begun
        told = sandbox.usage(since=since)
    truth = awake_s / took_s
    note = f"{rounds} turns of {_TURN_S:g} s: truth {truth:.2%}, told {told.active_share:.2%}"
    yield Figure(
        "duty", "active share told, off the truth", "points", (abs(told.active_share - truth) * 100,), note=note
    )
