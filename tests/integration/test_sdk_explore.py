"""Exploring through the SDK, against the real control plane over a fake host."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from torpor import (
    AsyncClient,
    AsyncSandbox,
    Candidate,
    Client,
    Conflict,
    ExecResult,
    ExploreFailed,
    InvalidRequest,
    NoCapacity,
    Outcome,
    Retry,
    Sandbox,
)
from torpor.testing.host import FakeHost
from torpor.testing.server import running_server

QUICK = Retry(attempts=1, first_delay_s=0.0)
PATIENCE_S = 30


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def server(tmp_path: Path, host: FakeHost) -> Iterator[tuple[str, str]]:
    with running_server(tmp_path / "home", host) as told:
        yield told


@pytest.fixture
def client(server: tuple[str, str]) -> Iterator[Client]:
    with Client(*server, retry=QUICK) as client:
        yield client


@pytest.fixture
def sandbox(client: Client) -> Sandbox:
    return Sandbox.create("agent", metadata={"run": "42"}, ttl_seconds=3000, client=client)


@pytest.fixture
async def async_client(server: tuple[str, str]) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(*server, retry=QUICK) as client:
        yield client


@pytest.fixture
async def async_sandbox(async_client: AsyncClient) -> AsyncSandbox:
    return await AsyncSandbox.create("agent", client=async_client)


def living(client: Client) -> set[str]:
    return {box.id for box in Sandbox.iterate(client=client)}


def test_the_best_is_kept_promoted_and_the_others_are_gone(client: Client, sandbox: Sandbox) -> None:
    sandbox.filesystem.write("/work/then", "then ")
    found = sandbox.explore(["cat /work/then; echo 3", "echo 7", "echo 5"], score=lambda _, one: one.stdout.split()[-1])
    assert [(one.label, one.score) for one in found.outcomes] == [
        ("echo 7", 7.0),
        ("echo 5", 5.0),
        ("cat /work/then; echo 3", 3.0),
    ]
    assert found.outcomes[-1].stdout == "then 3\n"
    assert living(client) == {sandbox.id, found.winner.id}
    assert sorted(found.reaped) == sorted(one.sandbox_id for one in found.outcomes[1:])
    assert (found.winner.metadata["fork_tree_role"], found.winner.info.ttl_seconds) == ("winner", 3000)
    assert (found.winner.metadata["fork_tree_id"], found.errors) == (found.tree_id, ())
    assert (sandbox.refresh().state, found.best.sandbox_id) == ("running", found.winner.id)
    assert found.winner.exec("cat /work/then").stdout == "then "
    lines = found.table().splitlines()
    assert len(lines) == 4
    assert lines[1].split()[:3] == ["*", "echo", "7"]


def test_the_smallest_is_taken_where_that_is_asked_for_and_a_function_may_choose(sandbox: Sandbox) -> None:
    found = sandbox.explore(["echo 3", "echo 7"], lambda _, one: float(one.stdout), select="min")
    assert found.best.label == "echo 3"
    found = sandbox.explore(["echo 3", "echo 7", "echo 5"], select=lambda outcomes: outcomes[1])
    assert found.outcomes[0].label == "echo 7"


def test_a_command_scores_what_its_branch_has_become(sandbox: Sandbox) -> None:
    found = sandbox.explore(["count a", "count a; count a"], score="count a")
    assert (found.best.label, found.best.score) == ("count a; count a", 3.0)


def test_of_equals_the_earlier_is_taken_if_none_is_faster() -> None:
    from torpor.sdk.exploring import plan_of

    plan = plan_of(["a", "b", "c"])
    outcomes = [Outcome(label, index, "", True, 1.0, duration_ms=5) for index, label in enumerate("abc")]
    assert plan.chosen(outcomes[::-1]) is outcomes[0]
    quicker = Outcome("c", 2, "", True, 1.0, duration_ms=4)
    assert plan.chosen([*outcomes, quicker]) is quicker


def test_functions_lists_and_candidates_are_tried(sandbox: Sandbox) -> None:
    def by_hand(box: Sandbox) -> str:
        box.filesystem.write("/work/made", "by hand")
        return "said"

    candidates: list[Any] = [
        by_hand,
        lambda box: box.exec("exit 3"),
        ["echo", "$HOME"],
        Candidate("with env", "echo $A; pwd", env={"A": "b"}, cwd="/work"),
    ]
    found = sandbox.explore(candidates, lambda _, one: one.label == "by_hand")
    by_index = sorted(found.outcomes, key=lambda one: one.index)
    assert [one.ok for one in by_index] == [True, False, True, True]
    assert (by_index[0].value, by_index[1].exit_code, by_index[2].stdout) == ("said", 3, "$HOME\n")
    assert isinstance(by_index[1].value, ExecResult)
    assert (by_index[3].stdout, by_index[3].label) == ("b\n/work\n", "with env")
    assert found.winner.filesystem.read_text("/work/made") == "by hand"


def test_a_branch_that_fails_is_an_outcome(client: Client, sandbox: Sandbox) -> None:
    def raises(box: Sandbox) -> None:
        raise ValueError("not so")

    def ends_itself(box: Sandbox) -> None:
        box.delete()
        box.exec("true")

    def checks(box: Sandbox) -> None:
        box.exec("echo out; exit 4", check=True)

    stuck = threading.Event()
    candidates: list[Any] = [
        raises,
        ends_itself,
        checks,
        Candidate("slow", "hang", timeout_seconds=0.2),
        Candidate("stuck", lambda _: stuck.wait(), timeout_seconds=0.2),
        "true",
    ]
    found = sandbox.explore(candidates)
    stuck.set()
    by_index = sorted(found.outcomes, key=lambda one: one.index)
    assert by_index[0].error == "ValueError: not so"
    assert "there is no sandbox" in str(by_index[1].error)
    assert (by_index[2].exit_code, by_index[2].stdout) == (4, "out\n")
    assert [one.timed_out for one in by_index] == [False, False, False, True, True, False]
    assert {one.score for one in by_index[:-1]} == {None}
    assert (found.best.label, living(client)) == ("true", {sandbox.id, found.winner.id})


def test_a_score_that_is_none_keeps_a_branch_from_winning(sandbox: Sandbox) -> None:
    scores = {"echo a": float("nan"), "echo b": "many", "echo c": 0}
    found = sandbox.explore(list(scores), lambda _, one: scores[one.label])
    assert found.best.label == "echo c"
    assert all(str(one.error).startswith("no score: ") for one in found.outcomes[1:])
    with pytest.raises(ExploreFailed, match="no score: nothing was printed"):
        sandbox.explore(["true", "echo a"], score="true")


def test_without_a_winner_nothing_is_left_and_the_error_has_the_outcomes(client: Client, sandbox: Sandbox) -> None:
    with pytest.raises(ExploreFailed, match=r"none of 2 branches .* exit code 1.* exit code 2") as failed:
        sandbox.explore(["false", "echo why; exit 2"], keep_losers=True)
    assert [one.exit_code for one in failed.value.outcomes] == [1, 2]
    assert failed.value.outcomes[1].stdout == "why\n"
    assert living(client) == {sandbox.id}


def test_what_failed_may_win_where_success_is_not_required(sandbox: Sandbox) -> None:
    found = sandbox.explore(["echo 1; exit 1", "echo 2; exit 2"], lambda _, one: one.stdout, require_success=False)
    assert (found.best.exit_code, found.best.ok) == (2, False)


def test_losers_that_are_kept_live_on_with_their_ttl(client: Client, sandbox: Sandbox) -> None:
    found = sandbox.explore(["echo 1", "echo 2"], lambda _, one: one.stdout, keep_losers=True, ttl_seconds=77)
    (loser,) = [Sandbox.connect(one.sandbox_id, client=client) for one in found.outcomes[1:]]
    assert (loser.info.ttl_seconds, found.reaped) == (77, ())


def test_one_candidate_is_tried_in_a_copy_too(client: Client, sandbox: Sandbox) -> None:
    found = sandbox.explore(["echo 1"])
    assert (found.tree_id, living(client)) == (None, {sandbox.id, found.winner.id})
    assert found.winner.info.ttl_seconds == 3000


def test_more_than_a_tree_holds_are_tried_in_rounds_of_like_size(
    host: FakeHost, client: Client, sandbox: Sandbox
) -> None:
    sizes: list[int] = []
    found = sandbox.explore(
        [f"echo {number}" for number in range(17)],
        lambda _, one: one.stdout,
        max_concurrency=16,
        on_outcome=lambda _: sizes.append(len(host.machines)),
    )
    assert (found.best.label, len(found.outcomes), len(found.reaped)) == ("echo 16", 17, 16)
    assert max(sizes) <= 1 + 8 + 1 + 9, "what cannot win any more makes room"
    assert living(client) == {sandbox.id, found.winner.id}


@pytest.mark.parametrize(
    ("candidates", "wishes"),
    [
        ([], {}),
        ("true", {}),
        ([""], {}),
        ([[]], {}),
        ([5], {}),
        (["true"], {"select": "best"}),
        (["true"], {"max_concurrency": 0}),
        (["true"], {"ttl_seconds": 0}),
        (["true"], {"timeout_seconds": 0}),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_made(
    client: Client, sandbox: Sandbox, candidates: object, wishes: dict[str, object]
) -> None:
    with pytest.raises((InvalidRequest, TypeError)):
        sandbox.explore(candidates, **wishes)  # type: ignore[arg-type]  # that is the point
    assert living(client) == {sandbox.id}
    for made in ({"run": len, "env": {"A": "b"}}, {"run": "true", "timeout_seconds": -1}):
        with pytest.raises(InvalidRequest):
            Candidate("x", **made)  # type: ignore[arg-type]  # that is the point


def test_a_fork_that_fails_is_raised_and_leaves_nothing(host: FakeHost, client: Client, sandbox: Sandbox) -> None:
    host.fail("restore", NoCapacity("full"), times=9)
    with pytest.raises(NoCapacity):
        sandbox.explore(["true", "true"])
    assert living(client) == {sandbox.id}


def test_an_error_in_on_outcome_ends_every_branch_at_once(client: Client, sandbox: Sandbox) -> None:
    def refuse(outcome: Outcome) -> None:
        raise RuntimeError(outcome.label)

    with pytest.raises(RuntimeError, match="true"):
        sandbox.explore(["hang", "true", "hang"], timeout_seconds=None, on_outcome=refuse)
    assert living(client) == {sandbox.id}


def test_ctrl_c_ends_every_branch_at_once(client: Client, sandbox: Sandbox) -> None:
    def interrupt(outcome: Outcome) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        sandbox.explore(["hang", "true", "hang", "hang", "hang", "hang"], timeout_seconds=None, on_outcome=interrupt)
    assert living(client) == {sandbox.id}
    assert time.monotonic() - began < PATIENCE_S


async def test_the_async_twin_explores_side_by_side(async_sandbox: AsyncSandbox, client: Client) -> None:
    arrived = asyncio.Barrier(3)

    async def meet(box: AsyncSandbox) -> str:
        async with asyncio.timeout(PATIENCE_S), arrived:
            return (await box.exec("echo here")).stdout

    async def longest(_: AsyncSandbox, outcome: Outcome) -> int:
        return outcome.index

    seen: list[str] = []

    async def see(outcome: Outcome) -> None:
        seen.append(outcome.label)

    found = await async_sandbox.explore([meet, meet, meet], longest, on_outcome=see)
    assert (found.best.index, found.best.value, seen) == (2, "here\n", ["meet"] * 3)
    assert living(client) == {async_sandbox.id, found.winner.id}


async def test_a_cancelled_exploration_leaves_no_branch(async_sandbox: AsyncSandbox, client: Client) -> None:
    first = asyncio.Event()

    def ended(_: Outcome) -> None:
        first.set()

    exploring = asyncio.create_task(
        async_sandbox.explore(["hang", "true", "hang"], timeout_seconds=None, on_outcome=ended)
    )
    async with asyncio.timeout(PATIENCE_S):
        await first.wait()
        exploring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exploring
    assert await asyncio.to_thread(living, client) == {async_sandbox.id}


async def test_a_slow_coroutine_is_timed_out(async_sandbox: AsyncSandbox) -> None:
    async def never(_: AsyncSandbox) -> None:
        await asyncio.Event().wait()

    async def gives_up(_: AsyncSandbox) -> None:
        raise TimeoutError("of its own")

    found = await async_sandbox.explore([Candidate("never", never, timeout_seconds=0.1), gives_up, "true"])
    by_index = sorted(found.outcomes, key=lambda one: one.index)
    assert [one.timed_out for one in by_index] == [True, False, False]
    assert by_index[1].error == "TimeoutError: of its own"


def test_a_tree_can_be_worked_with_by_hand(client: Client, sandbox: Sandbox) -> None:
    first, second, third = sandbox.fork_tree(3, metadata={"why": "try"}, ttl_seconds=60)
    assert [one.metadata["fork_index"] for one in (first, second, third)] == ["0", "1", "2"]
    told = second.promote(cleanup_siblings=True, tree_id=second.metadata["fork_tree_id"])
    assert (told.winner, told.deleted, told.failures) == (second.id, [first.id, third.id], {})
    assert (second.metadata["fork_tree_role"], second.info.ttl_seconds) == ("winner", 3000)
    with pytest.raises(Conflict):
        sandbox.promote()
    with pytest.raises(InvalidRequest):
        sandbox.fork_tree(1)
