"""Standing still and going on, inside the guest: what holds after each thing that can go wrong."""

from __future__ import annotations

import base64
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torpor_guest.connection import Operation
from torpor_guest.hooks import Ran
from torpor_guest.identity import Adoption, IdentityFiles
from torpor_guest.loop import Timer
from torpor_guest.quiesce import Quiescence, User
from torpor_guest.refusal import Refusal
from torpor_guest.requests import Request

ORDER: dict[str, Any] = {
    "sandbox_id": "sbx-0123456789bcdfgh",
    "hostname": "host",
    "wall_ns": 1_800_000_000_000_000_000,
    "entropy": base64.b64encode(b"e" * 64).decode(),
    "generation": 5,
}


class Tree:
    """Control groups whose kernel stops processes when the test says so."""

    def __init__(self, folder: Path, *, populated: bool = True) -> None:
        self.user = str(folder)
        self._events = folder / "cgroup.events"
        self._populated = populated
        self.ordered = False
        self.stopped = False
        self._tell()

    def _tell(self) -> None:
        self._events.write_text(f"populated {int(self._populated)}\nfrozen {int(self.stopped)}\n")

    def freezing(self) -> bool:
        return self.ordered

    def freeze(self) -> None:
        self.ordered = True

    def stop(self) -> None:
        self.stopped = True
        self._tell()

    def thaw(self) -> None:
        self.ordered = self.stopped = False
        self._tell()


class Turns:
    """Stands for the loop: keeps what is watched and what is due, for the test to call."""

    def __init__(self) -> None:
        self.watched: dict[int, Callable[[int], None]] = {}
        self.due: list[tuple[float, Timer]] = []

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        self.watched[fd] = handler

    def unwatch(self, fd: int) -> None:
        self.watched.pop(fd, None)

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call)
        self.due.append((seconds, timer))
        return timer

    def wake(self) -> None:
        for handler in list(self.watched.values()):
            handler(0)

    def run_out(self) -> None:
        for _, timer in self.due:
            if timer.call is not None:
                timer.call()


class Stream:
    """A call of the host, and how it was answered."""

    def __init__(self) -> None:
        self.open = True
        self.operation: Operation | None = None
        self.answer: dict[str, Any] | None = None
        self.refusal: Refusal | None = None

    def result(self, value: dict[str, Any]) -> None:
        if self.open:
            self.answer, self.open = value, False

    def refuse(self, refusal: Refusal) -> None:
        if self.open:
            self.refusal, self.open = refusal, False


class HookRun:
    """Hooks that end when the test says so."""

    empty = False

    def __init__(self) -> None:
        self.stopped = False

    def begin(self, done: Callable[[Ran], None]) -> None:
        self.done = done

    def stop(self) -> None:
        self.stopped = True


class Hooks:
    def __init__(self) -> None:
        self.runs: list[tuple[str, float, HookRun]] = []

    def make_run(self, event: str, budget_s: float) -> HookRun:
        self.runs.append((event, budget_s, HookRun()))
        return self.runs[-1][2]

    def count(self, event: str) -> int:
        return 2


class Guest:
    """An agent's part around a freeze, with everything below it played by the test."""

    def __init__(self, folder: Path, *, fails: str = "", populated: bool = True) -> None:
        (folder / "user").mkdir()
        self.tree = Tree(folder / "user", populated=populated)
        self.turns, self.hooks_there = Turns(), Hooks()
        self.files = IdentityFiles(str(folder / "identity"))
        self.clock: int | None = None
        self.marks: dict[bytes, bytes] = {}
        self.secrets: dict[bytes, bytes] | None = None
        self._fails = fails
        self.synced = 0
        user = User(self.tree, self.hooks_there, self.sync)  # type: ignore[arg-type]
        self.quiescence = Quiescence(self.turns, user, self.set_clock)  # type: ignore[arg-type]
        self.thaw, self.count_hooks = self.quiescence.thaw, self.hooks_there.count
        if fails == "files":
            self.files._open = dict.fromkeys(self.files._open, -1)

    def _maybe_fail(self, what: str) -> None:
        if what == self._fails:
            raise PermissionError(errno.EPERM, "not permitted")

    def sync(self) -> None:
        self.synced += 1

    def set_clock(self, wall_ns: int) -> None:
        self._maybe_fail("clock")
        self.clock = wall_ns

    def mark(self, marks: dict[bytes, bytes], secrets: dict[bytes, bytes] | None) -> None:
        self.marks.update(marks)
        self.secrets = secrets

    def add_entropy(self, entropy: bytes) -> None:
        self._maybe_fail("entropy")

    def set_hostname(self, name: str) -> None:
        self._maybe_fail("hostname")

    def quiesce(self, **fields: Any) -> Stream:
        return self._ask(self.quiescence.quiesce, fields)

    def unquiesce(self, **fields: Any) -> Stream:
        return self._ask(self.quiescence.unquiesce, fields)

    def adopt(self, **fields: Any) -> Stream:
        return self._ask(Adoption(self, self).adopt, ORDER | fields)

    @staticmethod
    def _ask(serve: Callable[..., None], fields: dict[str, Any]) -> Stream:
        stream = Stream()
        try:
            serve(stream, Request(fields))
        except Refusal as refusal:
            stream.refuse(refusal)
        return stream

    def freeze(self) -> None:
        """Quiesce it, to the end."""
        asked = self.quiesce()
        self.tree.stop()
        self.turns.wake()
        assert asked.answer == {"frozen": True}


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    return Guest(tmp_path)


def test_a_freeze_is_confirmed_once_the_kernel_says_so(guest: Guest) -> None:
    asked = guest.quiesce(timeout_s=3)
    guest.turns.wake()
    assert guest.tree.ordered
    assert asked.open
    guest.tree.stop()
    guest.turns.wake()
    assert asked.answer == {"frozen": True}
    assert guest.turns.watched == {}
    assert [(seconds, timer.call) for seconds, timer in guest.turns.due] == [(3.0, None)]


def test_where_nothing_runs_nothing_is_stopped(tmp_path: Path) -> None:
    guest = Guest(tmp_path, populated=False)
    assert guest.quiesce(settle=True).answer == {"frozen": False}
    assert not guest.tree.ordered
    assert guest.unquiesce().answer is not None


@pytest.mark.parametrize("step", ["entropy", "clock", "hostname", "files"])
def test_an_adoption_that_fails_anywhere_leaves_everything_stopped(tmp_path: Path, step: str) -> None:
    guest = Guest(tmp_path, fails=step)
    guest.freeze()
    asked = guest.adopt(env={"A": "1"}, event="wake")
    assert asked.answer is None
    assert asked.refusal is not None
    assert asked.refusal.code == "failed"
    assert guest.tree.stopped
    assert guest.tree.ordered
    assert guest.marks == {}


@pytest.mark.parametrize("wrong", [{"env": {"A=B": "1"}}, {"env": []}, {"thaw": 1}, {"event": "birth"}, {"event": 1}])
def test_an_adoption_that_makes_no_sense_changes_nothing(guest: Guest, wrong: dict[str, Any]) -> None:
    guest.count_hooks = _no_such_event
    guest.freeze()
    asked = guest.adopt(**wrong)
    assert asked.refusal is not None
    assert asked.refusal.code == "invalid_request"
    assert guest.tree.stopped
    assert guest.clock is None


def _no_such_event(event: str) -> int:
    raise Refusal("invalid_request", f"there are no hooks for {event}")


def test_an_adoption_lets_go_of_everything_or_not_as_it_is_told(guest: Guest) -> None:
    guest.freeze()
    kept = guest.adopt(thaw=False, env={"A": "1"}, event="wake")
    assert kept.answer is not None
    assert kept.answer["hooks"] == 2
    assert guest.tree.stopped
    assert guest.marks == {b"A": b"1", b"TORPOR_SANDBOX_ID": ORDER["sandbox_id"].encode()}
    let_go = guest.adopt(env={"TORPOR_SANDBOX_ID": "a lie"})
    assert let_go.answer is not None
    assert let_go.answer["hooks"] == 0
    assert not guest.tree.ordered
    assert guest.marks == {b"A": b"1", b"TORPOR_SANDBOX_ID": ORDER["sandbox_id"].encode()}


def test_everything_goes_on_with_the_clock_set(guest: Guest) -> None:
    guest.freeze()
    asked = guest.unquiesce(wall_ns=5)
    assert asked.answer is not None
    assert asked.answer.keys() == {"wall_ns"}
    assert guest.clock == 5
    assert not guest.tree.ordered


def test_a_clock_that_cannot_be_set_leaves_everything_stopped(tmp_path: Path) -> None:
    guest = Guest(tmp_path, fails="clock")
    guest.freeze()
    asked = guest.unquiesce(wall_ns=5)
    assert asked.refusal is not None
    assert guest.tree.stopped


def test_a_freeze_that_takes_too_long_is_undone(guest: Guest) -> None:
    asked = guest.quiesce(timeout_s=1)
    guest.turns.run_out()
    assert asked.refusal is not None
    assert asked.refusal.code == "failed"
    assert not guest.tree.ordered
    assert guest.turns.watched == {}


def test_a_freeze_that_the_host_gives_up_is_undone(guest: Guest) -> None:
    asked = guest.quiesce()
    assert asked.operation is not None
    asked.operation.on_cancel()
    assert asked.refusal is not None
    assert not guest.tree.ordered


def test_a_freeze_whose_host_is_gone_lets_nothing_go_on(guest: Guest) -> None:
    """What comes next may be the host of a copy, and nobody has said yet who that copy is."""
    asked = guest.quiesce()
    assert asked.operation is not None
    asked.open = False
    asked.operation.on_drop()
    assert guest.tree.ordered
    assert guest.turns.watched == {}
    guest.turns.run_out()
    assert guest.tree.ordered
    assert guest.adopt().answer is not None
    assert not guest.tree.ordered


def test_going_on_in_the_middle_of_a_freeze_ends_that_freeze(guest: Guest) -> None:
    asked = guest.quiesce()
    assert guest.unquiesce().answer is not None
    assert asked.refusal is not None
    assert not guest.tree.ordered
    assert guest.turns.watched == {}
    guest.turns.run_out()
    again = guest.quiesce()
    guest.tree.stop()
    guest.turns.wake()
    assert again.answer == {"frozen": True}


def test_a_second_freeze_takes_over_from_one_that_was_never_confirmed(guest: Guest) -> None:
    first, second = guest.quiesce(timeout_s=1), guest.quiesce(timeout_s=2)
    assert first.refusal is not None
    assert first.refusal.code == "cancelled"
    guest.tree.stop()
    guest.turns.wake()
    assert second.answer == {"frozen": True}
    guest.turns.run_out()
    assert guest.tree.stopped


@pytest.mark.parametrize(("timeout_s", "budget_s"), [(10.0, 8.0), (3.0, 1.5)])
def test_hooks_run_first_and_leave_time_for_the_freeze(guest: Guest, timeout_s: float, budget_s: float) -> None:
    asked = guest.quiesce(timeout_s=timeout_s, hooks=True)
    event, given, run = guest.hooks_there.runs[0]
    assert (event, given) == ("freeze", budget_s)
    assert not guest.tree.ordered
    run.done(Ran(1, [b"10-failed"]))
    assert guest.tree.ordered
    guest.tree.stop()
    guest.turns.wake()
    assert asked.answer == {"frozen": True}


def test_hooks_that_never_end_are_stopped_and_nothing_is(guest: Guest) -> None:
    asked = guest.quiesce(timeout_s=1, hooks=True)
    guest.turns.run_out()
    assert asked.refusal is not None
    assert guest.hooks_there.runs[0][2].stopped
    assert not guest.tree.ordered


def test_no_hooks_run_in_a_guest_that_stands_still(guest: Guest) -> None:
    guest.freeze()
    assert guest.quiesce(hooks=True).answer == {"frozen": True}
    assert guest.hooks_there.runs == []
