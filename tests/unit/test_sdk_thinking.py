"""Sleeping through a wait: when it is worth it, what it tells, and that the sandbox is awake afterwards."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripted_server import HASTY, SNAPSHOT, VIEW, Reply, answer, refusal
from torpor import AsyncClient, AsyncSandbox, Client, Conflict, FreezeFailed, RestoreFailed, Sandbox
from torpor.sdk.results import SandboxInfo
from torpor.sdk.thinking import FIRST_GUESS_S, MOST_WAITS, Costs, Pause, Pauses, Thought, Waits
from torpor.wire.public import SandboxView

# A sandbox whose start, and one whose last hibernation, took so little that any wait outlasts them.
QUICK = SandboxInfo.of(SandboxView.model_validate(VIEW | {"boot_ms": 1}))
SLEPT = {"items": [SNAPSHOT, SNAPSHOT | {"kind": "hibernation", "took_ms": 1.0}], "next_cursor": None}
PATIENCE_S = 20.0


def threshold(waits: list[float], break_even_s: float = 1.0) -> float:
    seen = Waits()
    for wait in waits:
        seen.add(wait)
    return seen.threshold_s(break_even_s)


@pytest.mark.parametrize("waits", [[], [9.0], [0.1, 9.0]])
def test_with_few_waits_seen_the_break_even_decides(waits: list[float]) -> None:
    assert threshold(waits) == 1.0


def test_long_waits_are_slept_through_from_the_break_even_on() -> None:
    assert threshold([20.0, 30.0, 40.0]) == 1.0


def test_where_waits_end_soon_after_the_break_even_it_waits_for_the_longer_ones() -> None:
    assert threshold([1.2, 1.2, 1.2, 1.2, 1.2, 1.2, 30.0]) == 1.2


def test_where_no_wait_so_far_was_worth_it_only_one_that_outlasts_them_all_is_slept_through() -> None:
    assert threshold([1.2, 1.5, 1.8]) == 1.8


def test_waits_below_the_break_even_change_nothing() -> None:
    assert threshold([0.1, 0.2, 0.9]) == 1.0


def test_only_the_newest_waits_count() -> None:
    assert threshold([1.2] * 30 + [30.0] * MOST_WAITS) == 1.0


@given(st.lists(st.floats(0, 100), max_size=60), st.floats(0.01, 20))
def test_the_threshold_is_never_below_the_break_even_and_none_is_cheaper(waits: list[float], even: float) -> None:
    chosen = threshold(waits, even)
    newest = waits[-MOST_WAITS:]

    def cost(at: float) -> float:
        return sum(wait if wait <= at else at + even for wait in newest)

    assert chosen >= even
    if len(newest) >= 3:
        assert all(cost(chosen) <= cost(other) for other in [even, math.inf, *newest] if other >= even)


def test_costs_are_a_guess_until_they_are_measured_and_then_the_median_of_the_newest() -> None:
    costs = Costs()
    assert (costs.break_even_s, costs.is_measured) == (FIRST_GUESS_S, False)
    costs.guess(0.5, None)
    assert costs.break_even_s == 0.5 + FIRST_GUESS_S / 2
    for seconds in (9.0, 9.0, 0.1, 0.2, 0.3, 0.4, 5.0):
        costs.hibernated(seconds)
        costs.woke(seconds)
    assert (costs.break_even_s, costs.is_measured) == (0.6, True)


def test_what_was_saved_is_summed_up() -> None:
    both = Thought().plus(Pause(10, True, 8, 7.5)).plus(Pause(1))
    assert both == Thought(waits=2, hibernations=1, waited_s=11, asleep_s=8, saved_s=7.5)
    assert str(both) == "2 waits of 11.0 s, 1 of them asleep, for 8.0 s; 7.5 s saved"


def test_of_blocks_within_each_other_the_outer_one_decides() -> None:
    pauses = Pauses()
    assert (pauses.enter(), pauses.enter()) == (True, False)
    pauses.leave(Pause(1))
    assert pauses.enter()


@dataclass
class Sleeper(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """A server with one sandbox, which can hibernate and wake. `asleep` and `woken` tell when it has."""

    replies: dict[str, Reply] = field(default_factory=dict)
    state: str = "running"
    verbs: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    asleep: threading.Event = field(default_factory=threading.Event)
    # So often the sandbox is in use when it is to hibernate.
    busy: int = 0
    hold: threading.Event | None = None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        verb = request.url.path.rpartition("/")[2]
        if request.method == "GET":
            body = SLEPT if verb == "snapshots" else VIEW | {"status": self.state}
            return self.replies.get(verb, answer(body)).response()
        if request.method == "DELETE":
            return Reply(204).response()
        self.verbs.append(verb)
        self.bodies.append(request.read())
        if verb == "hibernate" and self.busy > 0:
            self.busy -= 1
            return refusal(Conflict("in use", seen="running")).response()
        if self.hold is not None and verb == "hibernate":
            self.hold.wait(PATIENCE_S)
        if verb not in self.replies:
            self.state = {"hibernate": "hibernated", "wake": "running"}.get(verb, self.state)
        self.asleep.set()
        return self.replies.get(verb, answer({"status": self.state})).response()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await asyncio.to_thread(self.handle_request, request)

    @contextmanager
    def sandbox(self) -> Iterator[Sandbox]:
        with Client("http://127.0.0.1:1", "k", retry=HASTY, transport=self) as client:
            yield Sandbox(client, QUICK)

    def until_asleep(self) -> None:
        assert self.asleep.wait(PATIENCE_S)


def test_a_wait_that_lasts_is_slept_through_and_the_sandbox_is_awake_after_it() -> None:
    server = Sleeper()
    with server.sandbox() as box:
        with box.thinking() as pause:
            server.until_asleep()
        assert (server.verbs, box.state) == (["hibernate", "wake"], "running")
        assert (pause.hibernated, pause.error) == (True, None)
        assert pause.waited_s >= pause.asleep_s >= 0
        assert pause.break_even_s == pause.threshold_s == 0.002
        assert (box.thought.waits, box.thought.hibernations, box.thought.saved_s) == (1, 1, pause.saved_s)


def test_a_sandbox_in_use_is_looked_at_again_until_it_is_not() -> None:
    server = Sleeper(busy=2)
    with server.sandbox() as box:
        with box.thinking() as pause:
            server.until_asleep()
        assert (server.verbs, server.state) == (["hibernate"] * 3 + ["wake"], "running")
        assert (pause.hibernated, pause.left, pause.error) == (True, None, None)
    assert {json.dumps(json.loads(body)) for body in server.bodies[:3]} == {'{"if_unused": true}'}


def test_a_sandbox_in_use_to_the_end_of_the_wait_is_left_alone_and_the_report_says_so() -> None:
    server = Sleeper(busy=10_000)
    with server.sandbox() as box:
        with box.thinking() as pause:
            while pause.left is None:
                pass
        assert (set(server.verbs), pause.hibernated, pause.error) == ({"hibernate"}, False, None)
        assert str(pause).endswith(" s, in use")


@pytest.mark.parametrize("state", ["paused", "hibernated"])
def test_a_sandbox_that_rests_already_is_left_as_it_is_and_the_report_says_so(state: str) -> None:
    server = Sleeper(state=state)
    with server.sandbox() as box:
        with box.thinking() as pause:
            while pause.left is None:
                pass
        assert (server.verbs, server.state, pause.left, pause.hibernated) == ([], state, state, False)
        assert str(pause).endswith(f" s, {state}")


def test_one_that_was_paused_in_the_block_after_it_slept_is_not_woken() -> None:
    server = Sleeper()
    with server.sandbox() as box:
        with box.thinking() as pause:
            server.until_asleep()
            while not pause.hibernated:
                pass
            server.state = "paused"
        assert (server.verbs, server.state) == (["hibernate"], "paused")


def test_a_short_wait_leaves_the_sandbox_alone() -> None:
    server = Sleeper(replies={"snapshots": answer({"items": [], "next_cursor": None})})
    with server.sandbox() as box:
        with box.thinking() as pause:
            pass
        assert (server.verbs, pause.hibernated, box.thought.waits) == ([], False, 1)
        assert pause.break_even_s == FIRST_GUESS_S / 2 + 0.001


def test_what_it_measured_decides_from_then_on() -> None:
    server = Sleeper()
    with server.sandbox() as box:
        for _ in range(2):
            server.asleep.clear()
            with box.thinking() as pause:
                server.until_asleep()
        assert pause.break_even_s != 0.002


def test_a_hibernation_that_is_under_way_is_waited_for_and_undone() -> None:
    server = Sleeper(hold=threading.Event())
    assert server.hold is not None
    with server.sandbox() as box, box.thinking():
        while "hibernate" not in server.verbs:
            pass
        server.hold.set()
    assert (server.verbs, server.state) == (["hibernate", "wake"], "running")


def test_a_hibernation_that_fails_is_told_and_harms_nothing() -> None:
    server = Sleeper(replies={"hibernate": refusal(FreezeFailed("the disk is slow"))})
    with server.sandbox() as box:
        with box.thinking() as pause:
            server.until_asleep()
        assert (pause.hibernated, pause.asleep_s, pause.error) == (False, 0.0, "the disk is slow")
        assert server.verbs == ["hibernate"]


def test_a_wake_that_fails_is_raised_at_the_end_of_the_block() -> None:
    server = Sleeper(replies={"wake": refusal(RestoreFailed("no such luck"))})
    with server.sandbox() as box:
        with pytest.raises(RestoreFailed, match="no such luck"), box.thinking() as pause:
            server.until_asleep()
        assert (pause.error, box.thought.waits) == ("no such luck", 1)
        del server.replies["wake"]
        box.wake()
        server.asleep.clear()
        with box.thinking():
            server.until_asleep()
        assert (server.state, box.thought.waits) == ("running", 2)


def fail_thinking(box: Sandbox, server: Sleeper) -> None:
    with box.thinking():
        server.until_asleep()
        raise ValueError("of the model")


def test_the_blocks_own_error_is_the_one_that_is_told() -> None:
    server = Sleeper(replies={"wake": refusal(RestoreFailed("no such luck"))})
    with server.sandbox() as box, pytest.raises(ValueError, match="of the model") as caught:
        fail_thinking(box, server)
    assert isinstance(caught.value.__context__, RestoreFailed)
    assert caught.value.__notes__ == ["The sandbox could not be woken: no such luck"]


def test_a_block_that_fails_wakes_the_sandbox_all_the_same() -> None:
    server = Sleeper()
    with server.sandbox() as box, pytest.raises(ValueError, match="of the model"):
        fail_thinking(box, server)
    assert server.state == "running"


def test_what_was_woken_within_the_block_is_not_counted_as_asleep() -> None:
    server = Sleeper()
    with server.sandbox() as box:
        with box.thinking() as pause:
            server.until_asleep()
            while not pause.hibernated:
                pass
            server.state = "running"
        assert (server.verbs, pause.asleep_s, pause.saved_s) == (["hibernate"], 0.0, 0.0)


def test_within_a_block_another_one_does_nothing() -> None:
    server = Sleeper()
    with server.sandbox() as box:
        with box.thinking() as outer:
            with box.thinking() as inner:
                server.until_asleep()
            assert not inner.hibernated
        assert outer.hibernated
        assert (server.verbs, box.thought.waits) == (["hibernate", "wake"], 1)


class _Slow(SandboxInfo):
    """Is read slowly by one thread: that stops half-way until another one has learned something, or has to wait."""

    midway = threading.Event()
    learned = threading.Event()

    def __getattribute__(self, name: str) -> object:
        if name == "template" and threading.current_thread().name == "slow":
            self.midway.set()
            self.learned.wait(0.3)
        return super().__getattribute__(name)


def test_what_a_block_learns_beside_its_caller_takes_nothing_away_from_what_that_one_learned() -> None:
    transport = Sleeper(replies={"snapshots": answer(SNAPSHOT)})
    with Client("http://127.0.0.1:1", "k", transport=transport) as client:
        box = Sandbox(client, _Slow.of(SandboxView.model_validate(VIEW)))
        slow = threading.Thread(target=box.snapshot, name="slow")
        slow.start()
        assert _Slow.midway.wait(PATIENCE_S)
        box.hibernate()
        _Slow.learned.set()
        slow.join()
    assert (box.state, box.info.last_snapshot_id) == ("hibernated", SNAPSHOT["id"])


def test_a_sandbox_that_was_deleted_in_the_block_is_not_woken() -> None:
    server = Sleeper()
    with server.sandbox() as box, box.thinking():
        server.until_asleep()
        box.delete()
    assert "wake" not in server.verbs


async def awaited(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what changes is in a thread, or a plain value
        await asyncio.sleep(0)


async def test_the_async_twin_sleeps_through_a_wait_and_wakes() -> None:
    server = Sleeper()
    async with AsyncClient("http://127.0.0.1:1", "k", retry=HASTY, transport=server) as client:
        box = AsyncSandbox(client, QUICK)
        async with box.thinking() as pause:
            await awaited(lambda: pause.hibernated)
        assert (server.verbs, pause.hibernated, box.thought.waits) == (["hibernate", "wake"], True, 1)


async def test_a_cancelled_block_leaves_the_sandbox_awake_and_no_task() -> None:
    server = Sleeper()
    async with AsyncClient("http://127.0.0.1:1", "k", retry=HASTY, transport=server) as client:
        box = AsyncSandbox(client, QUICK)

        async def think() -> None:
            async with box.thinking():
                await asyncio.Event().wait()

        thinking = asyncio.create_task(think())
        await awaited(server.asleep.is_set)
        thinking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await thinking
    assert server.state == "running"
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_who_is_cancelled_while_waking_leaves_no_task() -> None:
    server = Sleeper(hold=threading.Event())
    assert server.hold is not None
    async with AsyncClient("http://127.0.0.1:1", "k", retry=HASTY, transport=server) as client:
        box = AsyncSandbox(client, QUICK)

        async def think() -> None:
            async with box.thinking():
                await awaited(lambda: "hibernate" in server.verbs)

        thinking = asyncio.create_task(think())
        await awaited(lambda: "hibernate" in server.verbs)
        await asyncio.sleep(0)
        thinking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await thinking
        server.hold.set()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_pause_reads_well() -> None:
    assert str(Pause(12.4, True, 9.8)) == "waited 12.4 s, asleep for 9.8 s of it"
    assert str(Pause(0.2, error="full")) == "waited 0.2 s, awake (full)"
