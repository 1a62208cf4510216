"""Random calls from several threads against a server that is killed now and then, and a model of what they mean.

Each worker has sandboxes of its own, so it knows what every answer must be. Where an answer was lost the model holds
all that may be true, and the next look at the sandbox has to show one of it. What a server has reported as done must
be there whatever happens after.
"""

from __future__ import annotations

import itertools
import random
import secrets
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chaos_shared import Shared
from chaos_world import Answer, World

NOTE = {"path": "/root/note"}
AWAKE, PAUSED, ASLEEP, LOST, GONE = "running", "paused", "hibernated", "failed", "deleted"
# What a verb says that did not work because the machine died meanwhile.
_FAILED = frozenset({"freeze_failed", "restore_failed", "failed"})
_MOST_SANDBOXES = 3
_PATIENCE = 60
# How many of the calls go to what is shared.
_SHARED = 0.15


@dataclass
class Held:
    """One sandbox as its worker knows it: every state it may be in, and all that its note may say."""

    id: str
    states: set[str] = field(default_factory=lambda: {AWAKE})
    notes: set[str | None] = field(default_factory=lambda: {None})
    # What the note says in each snapshot that was reported, as far as that is known.
    snapshots: dict[str, set[str | None]] = field(default_factory=dict)
    ever: set[str | None] = field(default_factory=lambda: {None})
    # Of these, the ones that were asked for: they go only when they are deleted.
    checkpoints: set[str] = field(default_factory=set)
    # Set before its machine is killed: from then on it may be lost.
    killed: bool = False
    # Whether it falls asleep by itself where nobody uses it.
    drowsy: bool = False

    @property
    def possible(self) -> set[str]:
        """Every state it may be in by now."""
        lost = {LOST} if self.killed else set()
        return self.states | lost | ({ASLEEP} if self.drowsy and self.states & {AWAKE, PAUSED} else set())


class Breach(AssertionError):
    """The server did what it must not."""


class Worker:
    """One caller with sandboxes of its own and a random mind."""

    def __init__(self, world: World, seed: int, calls: int, killer: Killer, shared: Shared | None = None) -> None:
        self.failure: BaseException | None = None
        self.done: dict[str, int] = {}
        self.held: list[Held] = []
        self._world, self._dice, self._calls, self._killer = world, random.Random(seed), calls, killer
        self._texts = itertools.count(1)
        self._seed = seed
        # Sandboxes that others call, too.
        self._shared = shared

    def run(self) -> None:
        """Make all calls; what went wrong is in `failure`."""
        try:
            for _ in range(self._calls):
                self._killer.step(self.held, self._dice)
                if self._shared is not None and self._dice.random() < _SHARED:
                    self._shared.call(self._dice)
                else:
                    self._one()
        except BaseException as error:
            self.failure = error

    # -- one call

    def _one(self) -> None:
        usable = [held for held in self.held if held.states != {GONE}]
        self.held = usable
        if not usable:
            self._create()
            return
        held = self._dice.choice(usable)
        verbs = [self._write, self._read, self._hibernate, self._wake, self._pause, self._resume, self._snapshot]
        verbs += [self._look, self._write, self._read, self._wake, self._count, self._resume, self._roll_back]
        if len(usable) < _MOST_SANDBOXES:
            verbs += [self._fork, self._restore]
        else:
            verbs += [self._delete]
        verb = self._dice.choice(verbs)
        self.done[verb.__name__] = self.done.get(verb.__name__, 0) + 1
        verb(held)

    def _ask(self, method: str, path: str, *, key: str | None = None, **more: Any) -> Answer:
        params, content, json = more.get("params", {}), more.get("content"), more.get("json")
        return self._world.request(method, path, params=params, content=content, json=json, key=key)

    def _ask_until_told(self, method: str, path: str, *, key: str | None = None, **more: Any) -> Answer:
        """Ask again and again until there is an answer; the same key makes it one request."""
        for _ in range(_PATIENCE):
            answer = self._ask(method, path, key=key, **more)
            if not answer.lost and answer.status != 503:
                return answer
        raise Breach(f"{method} {path} was never answered")

    def _expect(self, held: Held, what: str, answer: Answer, legal: Mapping[str, int]) -> bool:
        """Check an answer against every state the sandbox may be in, and tell whether it is a success.

        `legal`: the status that each state calls for. What was learned of the state is kept.
        """
        if answer.status == 503:  # nothing happened, and it may be asked again
            return False
        if held.killed and answer.code in _FAILED:  # its machine died in the middle, and it is as before, or lost
            held.states = held.states | {LOST}
            return False
        possible = held.possible
        fits = {state for state in possible if legal[state] == answer.status}
        if not fits:
            raise Breach(f"{what} of {held.id} answered {answer.status} {answer.body}, it may be {possible}")
        held.states = fits
        return answer.status < 300

    # -- verbs

    def _create(self, _held: Held | None = None) -> None:
        drowsy = self._dice.random() < 0.5
        care = {"idle_timeout_seconds": 1} if drowsy else {}
        care |= {"checkpoint_every_execs": 2} if self._dice.random() < 0.3 else {}
        wish = {"ttl_seconds": 3600, **care}
        answer = self._ask_until_told("POST", "/sandboxes", key=secrets.token_hex(8), json=wish)
        if answer.status != 201:
            raise Breach(f"create answered {answer.status} {answer.body}")
        self.held.append(Held(answer.body["id"], drowsy=drowsy))

    def _look(self, held: Held) -> None:
        """Read its state, which has to be one it may be in; and settle what was not known."""
        answer = self._ask_until_told("GET", f"/sandboxes/{held.id}")
        possible = held.possible
        if GONE in possible and answer.status == 404:
            held.states = {GONE}
            return
        if answer.status != 200:
            raise Breach(f"{held.id} cannot be shown: {answer.status} {answer.body}")
        state = answer.body["status"]
        if state in {"waking", "hibernating", "snapshotting", "restoring", "deleting", "creating"}:
            return  # the end of a passage whose caller is gone; a look later shows it
        if state not in possible:
            raise Breach(f"{held.id} is {state}, and may be {possible}: {answer.body}")
        held.states = {state}
        if state == LOST:
            self._recover(held, answer.body["last_snapshot_id"])

    def _recover(self, held: Held, last: str | None) -> None:
        """Put a lost sandbox back to its last snapshot, which must be there; one without is deleted."""
        if not held.killed:
            raise Breach(f"{held.id} is lost, and nobody killed it")
        if last is None:
            if held.snapshots:
                raise Breach(f"{held.id} has lost its snapshots {set(held.snapshots)}")
            self._delete(held)
            return
        answer = self._ask_until_told("POST", f"/sandboxes/{held.id}/rollback", json={"snapshot": last})
        if answer.status != 200:
            raise Breach(f"{held.id} could not be put back to {last}: {answer.status} {answer.body}")
        held.killed = False
        held.states, held.notes = {AWAKE}, set(held.snapshots.get(last, held.ever))

    def _write(self, held: Held) -> None:
        text = f"{self._seed}/{next(self._texts)}"
        held.ever.add(text)
        answer = self._ask("PUT", f"/sandboxes/{held.id}/fs", params=NOTE, content=text.encode())
        if answer.lost:
            held.notes = held.notes | {text}
            self._may_be_awake(held)
            return
        legal = {AWAKE: 200, ASLEEP: 200, PAUSED: 409, LOST: 410, GONE: 404}
        if self._expect(held, "write", answer, legal):
            held.notes, held.states = {text}, {AWAKE}

    def _read(self, held: Held) -> None:
        answer = self._ask("GET", f"/sandboxes/{held.id}/fs", params=NOTE)
        if answer.lost:
            self._may_be_awake(held)
            return
        if answer.status == 404 and GONE not in held.states:
            if None not in held.notes:
                raise Breach(f"the note of {held.id} is gone, it said one of {held.notes}")
            held.notes, held.states = {None}, {AWAKE}
            return
        legal = {AWAKE: 200, ASLEEP: 200, PAUSED: 409, LOST: 410, GONE: 404}
        if self._expect(held, "read", answer, legal):
            if answer.body not in held.notes:
                raise Breach(f"the note of {held.id} says {answer.body!r}, and not one of {held.notes}")
            held.notes, held.states = {answer.body}, {AWAKE}

    def _may_be_awake(self, held: Held) -> None:
        if held.states & {AWAKE, ASLEEP}:
            held.states = held.states | {AWAKE}

    def _count(self, held: Held) -> None:
        """Run a command that must not run twice, however often it is asked for under its key."""
        name, key = f"count-{next(self._texts)}", secrets.token_hex(8)
        order = {"cmd": self._world.count_command(name)}
        for _ in range(_PATIENCE):
            answer = self._ask("POST", f"/sandboxes/{held.id}/exec", key=key, json=order)
            if answer.lost:
                self._may_be_awake(held)
            elif answer.status != 503:
                break
        legal = {AWAKE: 200, ASLEEP: 200, PAUSED: 409, LOST: 410, GONE: 404}
        if answer.lost or not self._expect(held, "exec", answer, legal):
            return
        held.states = {AWAKE}
        if answer.body["stdout"].strip() != "1" or answer.body["exit_code"] != 0:
            raise Breach(f"a command of {held.id} with one key said {answer.body}, and not that it ran once")

    def _hibernate(self, held: Held) -> None:
        answer = self._ask("POST", f"/sandboxes/{held.id}/hibernate")
        if answer.lost:
            if held.states & {AWAKE, PAUSED}:
                held.states = held.states | {ASLEEP}
            return
        legal = {AWAKE: 200, ASLEEP: 200, PAUSED: 200, LOST: 410, GONE: 404}
        if self._expect(held, "hibernate", answer, legal):
            held.states = {ASLEEP}
            held.snapshots.setdefault(answer.body["snapshot_id"], set(held.notes))

    def _wake(self, held: Held) -> None:
        answer = self._ask("POST", f"/sandboxes/{held.id}/wake")
        if answer.lost:
            self._may_be_awake(held)
            return
        legal = {AWAKE: 200, ASLEEP: 200, PAUSED: 409, LOST: 410, GONE: 404}
        if self._expect(held, "wake", answer, legal):
            held.states = {AWAKE}

    def _pause(self, held: Held) -> None:
        answer = self._ask("POST", f"/sandboxes/{held.id}/pause")
        if answer.lost:
            if AWAKE in held.states:
                held.states = held.states | {PAUSED}
            return
        legal = {AWAKE: 204, ASLEEP: 409, PAUSED: 204, LOST: 410, GONE: 404}
        if self._expect(held, "pause", answer, legal):
            held.states = {PAUSED}

    def _resume(self, held: Held) -> None:
        answer = self._ask("POST", f"/sandboxes/{held.id}/resume")
        if answer.lost:
            if PAUSED in held.states:
                held.states = held.states | {AWAKE}
            return
        legal = {AWAKE: 204, ASLEEP: 409, PAUSED: 204, LOST: 410, GONE: 404}
        if self._expect(held, "resume", answer, legal):
            held.states = {AWAKE}

    def _snapshot(self, held: Held) -> None:
        key = secrets.token_hex(8)
        answer = self._ask_until_told("POST", f"/sandboxes/{held.id}/snapshots", key=key, json={})
        legal = {AWAKE: 201, ASLEEP: 409, PAUSED: 201, LOST: 410, GONE: 404}
        if answer.status == 201 and not held.states & {AWAKE, PAUSED}:
            raise Breach(f"a snapshot of {held.id} was taken, and it may be {held.states}")
        if self._expect(held, "snapshot", answer, legal):
            held.snapshots[answer.body["id"]] = set(held.notes)
            held.checkpoints.add(answer.body["id"])

    def _roll_back(self, held: Held) -> None:
        if not held.snapshots:
            return
        snapshot = self._dice.choice(sorted(held.snapshots))
        answer = self._ask("POST", f"/sandboxes/{held.id}/rollback", json={"snapshot": snapshot})
        if answer.status == 404 and held.states != {GONE}:
            self._forget(held, snapshot)
            return
        if answer.lost:
            held.notes = held.notes | held.snapshots[snapshot]
            held.states = held.states | {AWAKE}
            return
        legal = {AWAKE: 200, ASLEEP: 200, PAUSED: 200, LOST: 200, GONE: 404}
        if self._expect(held, "rollback", answer, legal):
            held.notes, held.states, held.killed = set(held.snapshots[snapshot]), {AWAKE}, False

    def _forget(self, held: Held, snapshot: str) -> None:
        """Take note that a snapshot is gone. Only those that nobody asked for go by themselves, for a newer one."""
        answer = self._ask_until_told("GET", "/snapshots", params={"sandbox_id": held.id, "limit": "1000"})
        there = {item["id"] for item in answer.body["items"]}
        if snapshot in there:
            raise Breach(f"{snapshot} is listed and cannot be found")
        if snapshot in held.checkpoints:
            raise Breach(f"the checkpoint {snapshot} is gone")
        del held.snapshots[snapshot]

    def _fork(self, held: Held) -> None:
        key = secrets.token_hex(8)
        answer = self._ask_until_told("POST", f"/sandboxes/{held.id}/fork", key=key, json={"ttl_seconds": 3600})
        legal = {AWAKE: 201, ASLEEP: 201, PAUSED: 201, LOST: 410, GONE: 404}
        if self._expect_possible(held, "fork", answer, legal):
            if (source := answer.body["snapshot_id"]) is not None:
                held.snapshots.setdefault(source, set(held.notes))
            self._adopt(answer.body["sandbox"]["id"], held.notes, drowsy=held.drowsy)

    def _expect_possible(self, held: Held, what: str, answer: Answer, legal: Mapping[str, int]) -> bool:
        """As `_expect`, for an answer that several states call for: nothing is learned of the state."""
        before = set(held.states)
        succeeded = self._expect(held, what, answer, legal)
        if succeeded:
            held.states = before
        return succeeded

    def _restore(self, held: Held) -> None:
        if not held.snapshots:
            return
        snapshot = self._dice.choice(sorted(held.snapshots))
        body = {"from_snapshot": snapshot, "ttl_seconds": 3600}
        answer = self._ask_until_told("POST", "/sandboxes", key=secrets.token_hex(8), json=body)
        if answer.status == 404:
            self._forget(held, snapshot)
        elif answer.status != 201:
            raise Breach(f"restore of {snapshot} answered {answer.status} {answer.body}")
        else:
            self._adopt(answer.body["id"], held.snapshots[snapshot])

    def _adopt(self, sandbox: str, notes: Iterable[str | None], *, drowsy: bool = False) -> None:
        self.held.append(Held(sandbox, notes=set(notes), ever=set(notes), drowsy=drowsy))

    def _delete(self, held: Held) -> None:
        answer = self._ask_until_told("DELETE", f"/sandboxes/{held.id}")
        if answer.status != 204:
            raise Breach(f"{held.id} could not be deleted: {answer.status} {answer.body}")
        held.states = {GONE}

    def settle(self) -> None:
        """At the end: see that each sandbox is as it may be, and that its note says what it may say."""
        for held in self.held:
            if held.drowsy:
                self._ask_until_told("PATCH", f"/sandboxes/{held.id}/lifecycle", json={"idle_seconds": 0})
                held.states, held.drowsy = held.possible, False
                self._look(held)
            self._look(held)
            if len(held.states) > 1:
                raise Breach(f"{held.id} does not come to rest, it may be {held.states}")
            if PAUSED in held.states:
                self._resume(held)
            if held.states & {AWAKE, ASLEEP}:
                self._read(held)


class Killer:
    """Ends machines and servers now and then, as the dice fall."""

    def __init__(self, world: World, *, machines: float, servers: float) -> None:
        self.machines_killed = self.servers_killed = 0
        self._world, self._machines, self._servers = world, machines, servers
        self._lock = threading.Lock()

    def step(self, held: list[Held], dice: random.Random) -> None:
        """Maybe end something, before the next call of a worker."""
        if dice.random() < self._servers and self._lock.acquire(blocking=False):
            try:
                self._world.kill_server()
                self.servers_killed += 1
            finally:
                self._lock.release()
        if held and dice.random() < self._machines:
            one = dice.choice(held)
            if AWAKE in one.states or PAUSED in one.states:
                one.killed = True
                self.machines_killed += self._world.kill_machine(one.id)


def run(
    world: World, killer: Killer, *, workers: int, calls: int, seed: int, shared: Shared | None = None
) -> list[Worker]:
    """Let workers make their calls at the same time, settle, and return them. Raises the first Breach."""
    callers = [Worker(world, seed * 1000 + number, calls, killer, shared) for number in range(workers)]
    threads = [threading.Thread(target=caller.run) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for caller in callers:
        if caller.failure is not None:
            raise caller.failure
    for caller in callers:
        caller.settle()
    return callers
