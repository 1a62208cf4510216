"""Sleep, snapshots and copies through the SDK, against the real control plane over a fake host."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from torpor import (
    AsyncClient,
    AsyncSandbox,
    AsyncSnapshot,
    Client,
    Conflict,
    FreezeFailed,
    InvalidRequest,
    NoCapacity,
    NotFound,
    OutOfSpace,
    Retry,
    Sandbox,
    Snapshot,
    SnapshotCorrupt,
)
from torpor.testing.host import FakeHost
from torpor.testing.server import running_server

QUICK = Retry(attempts=3, first_delay_s=0.0)


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def server(tmp_path: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    with running_server(tmp_path / "home", host) as (url, key):
        monkeypatch.setenv("TORPOR_API", url)
        monkeypatch.setenv("TORPOR_API_KEY", key)
        yield url, key


@pytest.fixture
def client(server: tuple[str, str]) -> Iterator[Client]:
    with Client(*server, retry=QUICK) as client:
        yield client


@pytest.fixture
def sandbox(client: Client) -> Sandbox:
    return Sandbox.create("agent", metadata={"run": "42"}, env={"A": "b"}, client=client)


def state_at_server(sandbox: Sandbox) -> str:
    return Sandbox.connect(sandbox.id, client=sandbox._client).state


def test_an_agents_loop_sleeps_across_each_wait_and_finds_everything_as_it_was(sandbox: Sandbox) -> None:
    for step in range(3):
        sandbox.wake()
        sandbox.filesystem.append("/work/steps", f"{step} ")
        assert sandbox.exec("cat /work/steps; echo $A", timeout_seconds=120).stdout.endswith(f"{step} b\n")
        sandbox.hibernate()
        assert (sandbox.state, state_at_server(sandbox)) == ("hibernated", "hibernated")
    assert sandbox.info.last_snapshot_id == sandbox.refresh().last_snapshot_id
    assert [one.kind for one in sandbox.snapshots()] == ["hibernation"]


def test_states_asked_for_twice_hold(sandbox: Sandbox) -> None:
    for verb, state in (("pause", "paused"), ("resume", "running"), ("hibernate", "hibernated"), ("wake", "running")):
        for _ in range(2):
            assert getattr(sandbox, verb)().state == state
            assert state_at_server(sandbox) == state


def test_a_command_or_a_file_wakes_what_sleeps_and_looking_does_not(client: Client, sandbox: Sandbox) -> None:
    sandbox.hibernate()
    assert sandbox.refresh().state == "hibernated"
    assert Sandbox.list(client=client)[0].state == "hibernated"
    assert sandbox.exec("echo awake").stdout == "awake\n"
    assert sandbox.refresh().state == "running"
    sandbox.hibernate()
    sandbox.filesystem.write("/work/x", "1")
    assert sandbox.refresh().state == "running"


def test_a_wake_keeps_the_end_unless_it_is_given_one(sandbox: Sandbox) -> None:
    end = sandbox.info.expires_at
    sandbox.hibernate()
    assert sandbox.wake().expires_at == end
    assert sandbox.refresh().expires_at == end
    sandbox.hibernate()
    assert sandbox.wake(ttl_seconds=60).ttl_seconds == 60
    assert sandbox.refresh().ttl_seconds == 60


def test_milestones_are_kept_and_the_last_one_is_restored(client: Client, sandbox: Sandbox) -> None:
    checkpoints: list[Snapshot] = []
    for phase in range(3):
        sandbox.filesystem.write("/work/phase", str(phase))
        checkpoints.append(sandbox.snapshot(f"phase-{phase}"))
    assert sandbox.snapshots() == checkpoints[::-1]
    assert [one.parent_id for one in checkpoints] == [None, checkpoints[0].id, checkpoints[1].id]
    sandbox.delete()
    with Sandbox.restore(checkpoints[-1], env={"B": "c"}, client=client) as recovered:
        assert (recovered.filesystem.read_text("/work/phase"), recovered.id != sandbox.id) == ("2", True)
        assert recovered.exec("echo $A $B").stdout == "b c\n"
        assert recovered.info.from_snapshot == checkpoints[-1].id
    with Sandbox.restore(str(checkpoints[0]), client=client) as first:
        assert first.filesystem.read("/work/phase") == b"0"


def test_a_rollback_is_the_same_sandbox_as_it_was(sandbox: Sandbox, host: FakeHost) -> None:
    sandbox.filesystem.write("/work/x", "before")
    before = sandbox.snapshot()
    sandbox.filesystem.write("/work/x", "after")
    assert sandbox.rollback(before).state == "running"
    assert sandbox.filesystem.read_text("/work/x") == "before"
    sandbox.filesystem.write("/work/x", "again")
    host.lose_answer("rollback")
    sandbox.rollback(before.id)
    assert sandbox.filesystem.read_text("/work/x") == "before"
    assert dict(sandbox.metadata) == {"run": "42"}


def test_a_rollback_to_another_sandboxes_snapshot_is_refused(client: Client, sandbox: Sandbox) -> None:
    other = Sandbox.create(client=client).snapshot()
    with pytest.raises(Conflict, match=other.id):
        sandbox.rollback(other)


def test_forks_begin_alike_and_go_their_own_ways(client: Client, sandbox: Sandbox) -> None:
    sandbox.filesystem.write("/work/plan", "draft")
    with sandbox.fork() as child:
        assert (child.info.parent_id, child.filesystem.read_text("/work/plan")) == (sandbox.id, "draft")
    first, second = sandbox.fork(2, metadata={"try": "2"}, ttl_seconds=60)
    first.filesystem.write("/work/plan", "one way")
    assert second.filesystem.read_text("/work/plan") == "draft"
    assert sandbox.filesystem.read_text("/work/plan") == "draft"
    assert (dict(first.metadata), first.info.ttl_seconds) == ({"run": "42", "try": "2"}, 60)
    assert {box.id for box in Sandbox.iterate({"try": "2"}, client=client)} == {first.id, second.id}
    (only,) = sandbox.fork(1, persistent=True)
    assert only.info.persistent


@pytest.mark.parametrize("verb", ["pause", "hibernate"])
def test_what_stands_still_can_be_forked_and_goes_on_standing_still(sandbox: Sandbox, verb: str) -> None:
    sandbox.filesystem.write("/work/x", "1")
    state = getattr(sandbox, verb)().state
    (child,) = sandbox.fork(1)
    assert child.filesystem.read_text("/work/x") == "1"
    assert sandbox.refresh().state == state


def test_what_is_asked_for_once_is_made_once_though_its_answer_is_lost(
    client: Client, sandbox: Sandbox, host: FakeHost
) -> None:
    host.lose_answer("snapshot")
    taken = sandbox.snapshot("once")
    assert [one.id for one in sandbox.snapshots()] == [taken.id]
    host.lose_answer("restore")
    restored = Sandbox.restore(taken, client=client)
    host.lose_answer("restore")
    child = sandbox.fork()
    alive = {box.id for box in Sandbox.iterate(client=client)}
    assert alive == {sandbox.id, restored.id, child.id}


@pytest.mark.parametrize(
    ("verb", "call", "error"),
    [
        ("hibernate", lambda box: box.hibernate(), FreezeFailed),
        ("snapshot", lambda box: box.snapshot(), OutOfSpace),
        ("restore", lambda box: box.fork(2), NoCapacity),
    ],
)
def test_what_fails_leaves_the_sandbox_as_it_was(
    client: Client, sandbox: Sandbox, host: FakeHost, verb: str, call: object, error: type[Exception]
) -> None:
    host.fail(verb, error("told to fail"), times=9)  # type: ignore[arg-type]
    with pytest.raises(error, match="told to fail"):
        call(sandbox)  # type: ignore[operator]
    assert sandbox.refresh().state == "running"
    assert sandbox.snapshots() == []
    assert [box.id for box in Sandbox.iterate(client=client)] == [sandbox.id]


def test_a_spoiled_snapshot_is_refused_and_the_others_are_not(client: Client, sandbox: Sandbox, host: FakeHost) -> None:
    good, bad = sandbox.snapshot(), sandbox.snapshot()
    host.spoil(bad.id)
    assert good.verify().id == good.id
    for act in (bad.verify, lambda: Sandbox.restore(bad, client=client), lambda: sandbox.rollback(bad)):
        with pytest.raises(SnapshotCorrupt):
            act()
    assert sandbox.exec("echo fine").stdout == "fine\n"
    sandbox.rollback(good)


def test_a_snapshot_is_deleted_twice_and_then_unknown(client: Client, sandbox: Sandbox) -> None:
    taken = sandbox.snapshot()
    child = Sandbox.restore(taken, client=client)
    assert Snapshot.get(taken.id, client=client) == taken
    taken.delete()
    taken.delete()
    assert child.exec("echo on").stdout == "on\n"
    for act in (
        lambda: Snapshot.get(taken.id, client=client),
        lambda: Sandbox.restore(taken, client=client),
        lambda: sandbox.rollback(taken),
        taken.verify,
    ):
        with pytest.raises(NotFound):
            act()


def test_all_snapshots_are_listed_page_by_page(client: Client, sandbox: Sandbox) -> None:
    other = Sandbox.create(client=client)
    taken = [box.snapshot() for box in (sandbox, other, sandbox)]
    assert list(Snapshot.iterate(client=client)) == taken[::-1]
    first = Snapshot.list(limit=2, client=client)
    assert list(Snapshot.list(limit=2, cursor=first.next_cursor, client=client)) == [taken[0]]
    assert list(Snapshot.list(other, client=client)) == [taken[1]]


def test_wrong_values_are_refused_by_name(client: Client, sandbox: Sandbox) -> None:
    with pytest.raises(InvalidRequest, match="name"):
        sandbox.snapshot("")
    with pytest.raises(InvalidRequest, match="count"):
        sandbox.fork(65)
    with pytest.raises(InvalidRequest, match=r"metadata\.x"):
        sandbox.fork(metadata={"x": 1})  # type: ignore[dict-item]


def test_a_command_in_flight_goes_on_across_a_hibernation(sandbox: Sandbox) -> None:
    begun, results = threading.Event(), []

    def work() -> None:
        results.append(sandbox.exec("echo begun; sleep 0.3; echo done", on_stdout=lambda _: begun.set()))

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(10)
    sandbox.hibernate()
    sandbox.wake()
    thread.join(10)
    assert [(one.stdout, one.exit_code) for one in results] == [("begun\ndone\n", 0)]


async def test_the_async_twin_does_the_same(server: tuple[str, str]) -> None:
    async with AsyncClient(*server, retry=QUICK) as client, AsyncSandbox.create("agent", client=client) as box:
        await box.filesystem.write("/work/x", "1")
        taken = await box.snapshot("ready")
        await box.hibernate()
        assert (await asyncio.gather(*(box.exec(f"echo {n}") for n in range(4))))[3].stdout == "3\n"
        async with box.fork() as child, AsyncSandbox.restore(taken, client=client) as other:
            assert await child.filesystem.read_text("/work/x") == await other.filesystem.read_text("/work/x") == "1"
        assert len(await box.fork(2)) == 2
        await box.rollback(taken)
        assert taken in [one async for one in AsyncSnapshot.iterate(box, client=client)]
        await (await AsyncSnapshot.get(str(taken), client=client)).delete()
        with pytest.raises(NotFound):
            await AsyncSandbox.restore(taken, client=client)
