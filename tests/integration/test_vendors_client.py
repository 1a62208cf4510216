"""The client `pandastack`, unchanged, against the real control plane over a fake host: what needs no guest.

`tests/system/test_vendors_client.py` has the rest.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandastack  # type: ignore[import-untyped]  # it comes without types
import pytest

from torpor.errors import NoCapacity, OutOfSpace
from torpor.testing.host import FakeHost
from torpor.testing.server import running_server


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def client(tmp_path: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with running_server(tmp_path / "home", host) as (url, key):
        monkeypatch.setenv("PANDASTACK_API", url)
        monkeypatch.setenv("PANDASTACK_API_KEY", key)
        monkeypatch.setenv("HOME", str(tmp_path))  # where it would look for settings of its own
        client = pandastack.Client()
        pandastack.set_default_client(client)
        yield client
        pandastack.set_default_client(None)
        client.session.close()


@pytest.fixture
def sandbox(client: Any) -> Any:
    return client.sandboxes.create(template="base", metadata={"run": "1"}, ttl_seconds=600)


def test_the_environment_is_all_it_needs(client: Any) -> None:
    with pandastack.Sandbox.create("base", metadata={"run": "7"}) as sandbox:
        assert sandbox.refresh().status == "running"
        assert (sandbox.cpu, sandbox.memory_mb, sandbox.template) == (1, 512, "base")
        assert sandbox.metadata == {"run": "7"}
        assert [one.id for one in pandastack.Sandbox.list()] == [sandbox.id]
        assert pandastack.Sandbox.get(sandbox.id) == sandbox
    with pytest.raises(pandastack.NotFoundError):
        pandastack.Sandbox.get(sandbox.id)
    sandbox.kill()


def test_what_is_persistent_outlives_its_block(client: Any) -> None:
    with client.sandboxes.create("base", persistent=True) as sandbox:
        assert sandbox.persistent
    assert sandbox.lifecycle()["persistent"] is True
    assert sandbox.set_persistent(False)["ttl_seconds"] == 3600
    assert sandbox.set_ttl(60)["ttl_seconds"] == 60
    assert sandbox.set_persistent(True)["expires_at"] is None


def test_sizes_are_ignored_with_a_warning(client: Any) -> None:
    with pytest.warns(DeprecationWarning, match="baked into the template"):
        sandbox = client.sandboxes.create("base", cpu=2, memory_mb=4096)
    assert (sandbox.cpu, sandbox.memory_mb) == (1, 512)


def test_states_are_asked_for_and_hold(sandbox: Any) -> None:
    for verb, status in (("pause", "paused"), ("resume", "running"), ("hibernate", "hibernated"), ("wake", "running")):
        for _ in range(2):
            getattr(sandbox, verb)()
            assert sandbox.refresh().status == status


def test_snapshots_are_taken_listed_restored_and_deleted(client: Any, sandbox: Any) -> None:
    sandbox.filesystem.write("/work/a", "then")
    snapshot = sandbox.snapshot()
    sandbox.filesystem.write("/work/a", "later")
    restored = client.sandboxes.create(from_snapshot=snapshot)
    assert (restored.from_snapshot, restored.filesystem.read("/work/a")) == (snapshot, b"then")
    assert client.snapshots.get(snapshot)["sandbox_id"] == sandbox.id
    for listed in (client.snapshots.list(), client.snapshots.list(sandbox_id=sandbox.id)):
        assert [one["id"] for one in listed] == [snapshot]
        assert {"sandbox_id", "template", "size_bytes", "created_at"} <= listed[0].keys()
    assert client.snapshots.list(sandbox_id=restored.id) == []
    client.snapshots.delete(snapshot)
    with pytest.raises(pandastack.NotFoundError):
        client.snapshots.get(snapshot)


def test_forks_are_children_with_labels_of_their_own(client: Any, sandbox: Any) -> None:
    child = sandbox.fork(metadata={"role": "child"})
    assert (child.status, child.metadata["role"], child.metadata["run"]) == ("running", "child", "1")
    assert child.metadata["fork_parent_id"] == sandbox.id
    assert sandbox.fork().id != child.id
    children = sandbox.fork_tree(3, metadata={"explore_ttl": "60"})
    trees = {one.metadata["fork_tree_id"] for one in children}
    assert (len(children), len(trees), children[2].metadata["fork_index"]) == (3, 1, "2")
    assert children[0].lifecycle()["ttl_seconds"] == 60
    told = children[1].promote(cleanup_siblings=True, tree_id=trees.pop())
    assert (told["winner"], told["failures"]) == (children[1].id, {})
    assert told["deleted"] == [children[0].id, children[2].id]
    assert children[1].lifecycle()["ttl_seconds"] == 600
    for count in (1, 17):
        with pytest.raises(pandastack.BadRequestError, match="count"):
            sandbox.fork_tree(count)


def test_it_explores_and_keeps_the_winner(client: Any, sandbox: Any) -> None:
    def score(_: Any, outcome: Any) -> float:
        return float(outcome.stdout_tail)

    found = sandbox.explore(["echo 3", "echo 7", "exit 2"], score_fn=score, capture_files=False)
    assert (found.winner_outcome.label, found.errors, found.reap_failures) == ("echo 7", [], {})
    assert {one.id for one in client.sandboxes.list()} == {sandbox.id, found.winner.id}
    assert len(found.reaped) == 2
    with pytest.raises(pandastack.ExploreError):
        sandbox.explore(["exit 1", "exit 2"], capture_files=False)
    assert {one.id for one in client.sandboxes.list()} == {sandbox.id, found.winner.id}


def test_errors_are_told_apart(client: Any, sandbox: Any) -> None:
    with pytest.raises(pandastack.BadRequestError, match="there is no template 'none'"):
        client.sandboxes.create("none")
    with pytest.raises(pandastack.BadRequestError, match="cmd"):
        sandbox.exec("")
    with pytest.raises(pandastack.NotFoundError, match="there is no sandbox"):
        client.sandboxes.get("sbx-0000000000000000")
    with pytest.raises(pandastack.NotFoundError):
        client.sandboxes.create(from_snapshot="snp-0000000000000000")
    with pytest.raises(pandastack.AuthError):
        pandastack.Client(api_key="tpr_wrong").sandboxes.list()
    with pytest.raises(pandastack.AuthError):
        pandastack.Client(api_key="").sandboxes.list()


def test_commands_fail_and_time_out_as_it_says(sandbox: Any) -> None:
    with pytest.raises(pandastack.CommandFailed) as failed:
        sandbox.exec("echo out; exit 3", check=True)
    assert (failed.value.exit_code, failed.value.stdout) == (3, "out\n")
    with pytest.raises(pandastack.SandboxTimeout):
        sandbox.exec("sleep 60", timeout_seconds=1)
    with pytest.raises(pandastack.SandboxTimeout):
        sandbox.exec_stream("sleep 60", timeout_seconds=1)
    assert sandbox.commands.run("echo hi", timeout=5).stdout == "hi\n"


@pytest.mark.parametrize(
    ("refusal", "make"),
    [
        (NoCapacity("no room"), lambda client, _: client.sandboxes.create("base")),
        (OutOfSpace("the host's disk is full"), lambda client, _: client.sandboxes.create("base")),
        (NoCapacity("no room"), lambda _, sandbox: sandbox.fork()),
        (NoCapacity("no room"), lambda _, sandbox: sandbox.fork_tree(2)),
    ],
)
def test_a_host_without_room_is_asked_again(
    client: Any, sandbox: Any, host: FakeHost, monkeypatch: pytest.MonkeyPatch, refusal: Any, make: Callable[..., Any]
) -> None:
    monkeypatch.setattr("pandastack.client._sleep", lambda _: None)  # its own seam for tests
    events: list[Any] = []
    client.on_create_retry = events.append
    before = len(client.sandboxes.list())
    host.fail("restore", refusal)
    made = make(client, sandbox)
    assert [(one.attempt, one.error) for one in events] == [(1, refusal.message)]
    assert len(client.sandboxes.list()) == before + (len(made) if isinstance(made, list) else 1)


def test_a_create_that_waits_for_room_can_be_cancelled(client: Any, host: FakeHost) -> None:
    cancel = threading.Event()
    client.on_create_retry = lambda _: cancel.set()
    host.fail("restore", NoCapacity("no room"))
    with pytest.raises(pandastack.CreateCancelled, match="no room"):
        client.sandboxes.create("base", cancel=cancel)
    assert client.sandboxes.list() == []


def test_keys_are_made_listed_and_revoked(client: Any) -> None:
    made = client.tokens.create("ci", expires_in_days=3)
    assert (made.name, bool(made.token), bool(made.created_at)) == ("ci", True, True)
    assert [one.prefix for one in client.tokens.list() if one.name == "ci"] == [made.prefix]
    assert pandastack.Client(api_key=made.token).sandboxes.list() == []
    assert client.me()["workspace"] == "default"
    client.tokens.revoke(made.prefix)
    with pytest.raises(pandastack.AuthError):
        pandastack.Client(api_key=made.token).sandboxes.list()


def test_the_console_is_read_and_followed(sandbox: Any, host: FakeHost) -> None:
    host.consoles[sandbox.id] = "eins\r\nzwei é\n".encode()
    assert list(sandbox.logs()) == ["eins", "zwei é"]
    assert list(sandbox.logs(stream="stdout")) == ["eins", "zwei é"]
    followed = sandbox.logs(follow=True)
    assert [next(followed), next(followed)] == ["eins", "zwei é"]
    host.consoles[sandbox.id] += b"drei\n"
    assert next(followed) == "drei"
    sandbox.kill()
    assert list(followed) == []


def test_previews_are_urls_by_host(client: Any, sandbox: Any, host: FakeHost) -> None:
    host.servers[8000] = 1
    client.preview_host = "localhost:7070"
    assert sandbox.preview_url(8000, scheme="http") == f"http://8000-{sandbox.id}.localhost:7070"
    assert sandbox.preview_urls() == {8000: f"https://8000-{sandbox.id}.localhost:7070"}


def test_what_is_not_offered_is_not_found_and_says_so(client: Any) -> None:
    asked = [
        client.apps.list,
        lambda: client.apps.create("a", "https://code.example.com/a.git"),
        client.databases.list,
        client.functions.list,
        client.schedules.list,
        lambda: client.schedules.create("a", "f", "* * * * *"),
    ]
    for ask in asked:
        with pytest.raises(pandastack.NotFoundError) as refused:
            ask()
        assert str(refused.value)
        assert "{" not in str(refused.value), "it is a plain sentence"


def test_nothing_it_does_is_deprecated_here(client: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.sandboxes.create("base").kill()
