"""Processes, re-attaching, care, usage and events: the SDK against the real control plane, over a fake host."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from torpor import (
    AsyncClient,
    AsyncSandbox,
    Client,
    Conflict,
    ExecTimeout,
    InvalidRequest,
    NotFound,
    Retry,
    Sandbox,
    TorporError,
)
from torpor.testing.host import FakeHost
from torpor.testing.server import running_server

PATIENCE_S = 20.0
HASTY = Retry(attempts=5, first_delay_s=0.0, longest_delay_s=0.0)


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def server(tmp_path: Path, host: FakeHost) -> Iterator[tuple[str, str]]:
    with running_server(tmp_path / "home", host) as (url, key):
        yield url, key


@pytest.fixture
def client(server: tuple[str, str]) -> Iterator[Client]:
    with Client(*server) as client:
        yield client


@pytest.fixture
def sandbox(client: Client) -> Sandbox:
    return Sandbox.create("agent", metadata={"run": "42"}, client=client)


class _Cut(httpx2.SyncByteStream):
    def __init__(self, stream: httpx2.SyncByteStream, most: int) -> None:
        self._stream, self._most = stream, most

    def __iter__(self) -> Iterator[bytes]:
        left = self._most
        for chunk in self._stream:
            if len(chunk) > left:
                yield chunk[:left]
                raise httpx2.ReadError("cut")
            left -= len(chunk)
            yield chunk

    def close(self) -> None:
        self._stream.close()


class FlakyLine(httpx2.HTTPTransport):
    """A network that breaks each stream of events after so many bytes, wherever they end."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.cuts = 0

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = super().handle_request(request)
        if request.url.path.endswith("/stream"):
            self.cuts += 1
            assert isinstance(response.stream, httpx2.SyncByteStream)
            response.stream = _Cut(response.stream, self.most)
        return response


def test_an_exec_over_a_line_that_keeps_breaking_loses_and_doubles_nothing(server: tuple[str, str]) -> None:
    line = FlakyLine(2_000_001)
    heard = hashlib.sha256()
    with Client(*server, retry=HASTY, transport=line) as client, Sandbox.create(client=client) as box:
        result = box.exec("blob 5000000", on_stdout=heard.update, binary=True)
        assert (len(result.stdout_bytes), result.exit_code) == (5_000_000, 0)
        assert heard.digest() == hashlib.sha256(b"a" * 5_000_000).digest()
        assert [one.info.kind for one in box.processes()] == ["exec"]
    assert line.cuts > 3


def test_an_exec_with_input_over_such_a_line_runs_once(server: tuple[str, str]) -> None:
    line = FlakyLine(2_000_001)
    data = bytes(range(256)) * 20_000
    with Client(*server, retry=HASTY, transport=line) as client, Sandbox.create(client=client) as box:
        assert box.exec("cat", stdin=data).stdout_bytes == data
        assert len(box.processes()) == 1
    assert line.cuts > 3


def test_an_error_in_a_callback_kills_the_command(sandbox: Sandbox) -> None:
    def upset(_: str) -> None:
        raise ValueError("of the caller")

    with pytest.raises(ValueError, match="of the caller"):
        sandbox.exec("echo begun; hang", on_stdout=upset)
    (killed,) = sandbox.processes()
    assert killed.wait().signal == "SIGKILL"


def test_a_process_is_started_lost_found_and_heard_to_its_end(sandbox: Sandbox) -> None:
    started = sandbox.start("echo one; echo two >&2; exit 3")
    found = sandbox.attach(started.id)
    assert sorted(found) == [("stderr", b"two\n"), ("stdout", b"one\n")]
    assert (found.exit_code, found.refresh().state, found.info.kind) == (3, "ended", "process")
    result = found.wait()
    assert (result.stdout, result.stderr, result.exit_code) == ("one\n", "two\n", 3)
    assert (found.output(), found.output(2), found.output(4), found.output(stream="stderr")) == (
        b"one\n",
        b"e\n",
        b"",
        b"two\n",
    )
    with pytest.raises(InvalidRequest):
        found.output(5)
    assert [one.id for one in sandbox.processes()] == [started.id]
    with pytest.raises(NotFound):
        sandbox.attach("job-0000000000000000")


def test_a_process_is_listened_to_while_it_runs_and_killed(sandbox: Sandbox) -> None:
    started = sandbox.start("echo begun; hang")
    with closing(started.events()) as pieces:
        assert next(pieces) == ("stdout", b"begun\n")
    assert started.output() == b"begun\n"
    with pytest.raises(TimeoutError):
        started.wait(timeout=0.2)
    assert started.refresh().state == "running"
    started.kill("TERM")
    assert (started.wait().exit_code, started.wait().signal) == (143, "SIGTERM")
    with pytest.raises(Conflict):
        started.kill()


def test_input_is_given_to_a_process_piece_by_piece(sandbox: Sandbox) -> None:
    reader = sandbox.start(["cat"], stdin=True)
    assert reader.write_stdin("one ") == 4
    assert reader.write_stdin(b"two") == 3
    reader.close_stdin()
    assert reader.wait().stdout == "one two"
    assert sandbox.start("cat", stdin="at once").wait().stdout == "at once"


def test_a_timeout_of_a_process_is_told_to_whoever_waits(sandbox: Sandbox) -> None:
    late = sandbox.start("echo begun; hang", timeout_seconds=0.2)
    with pytest.raises(ExecTimeout) as caught:
        late.wait()
    assert caught.value.stdout == "begun\n"
    assert late.refresh().timed_out


def test_care_is_kept_shown_and_changed(client: Client) -> None:
    with Sandbox.create(
        idle_timeout_seconds=600, on_crash="restore", checkpoint_every_execs=9, checkpoint_keep=2, client=client
    ) as box:
        info = Sandbox.connect(box.id, client=client).info
        assert (info.idle_timeout_seconds, info.on_idle, info.on_crash) == (600, "hibernate", "restore")
        assert (info.checkpoint_every_execs, info.checkpoint_keep) == (9, 2)
        assert box.set_idle(None).idle_timeout_seconds is None
        assert box.refresh().idle_timeout_seconds is None
        assert box.set_ttl(None).persistent
        assert box.set_ttl(60).expires_at is not None


def test_thinking_sleeps_through_a_wait_and_wakes(sandbox: Sandbox) -> None:
    sandbox.hibernate()
    sandbox.wake()
    with sandbox.thinking() as pause:
        while not pause.hibernated:
            pass
        assert sandbox.refresh().state == "hibernated"
    assert sandbox.refresh().state == "running"
    assert (pause.error, sandbox.thought.hibernations) == (None, 1)


@pytest.mark.parametrize("is_within", [True, False])
def test_a_command_of_this_program_is_never_frozen_by_thinking(sandbox: Sandbox, is_within: bool) -> None:
    begun, is_frozen = threading.Event(), []

    def work() -> None:
        with contextlib.suppress(TorporError):
            sandbox.exec("echo begun; hang", on_stdout=lambda _: begun.set())

    working = threading.Thread(target=work)
    if not is_within:
        working.start()
        assert begun.wait(PATIENCE_S)
    with sandbox.thinking() as pause:
        if is_within:
            working.start()
            assert begun.wait(PATIENCE_S)
        while pause.left is None:
            pass
        is_frozen.append(sandbox.refresh().state != "running")
        (running,) = sandbox.processes()
        running.kill()
        working.join()
    assert (is_frozen, pause.left, pause.error) == ([False], "in use", None)


def test_a_started_process_sleeps_through_thinking(sandbox: Sandbox) -> None:
    started = sandbox.start("echo begun; hang")
    with sandbox.thinking() as pause:
        while not pause.hibernated:
            pass
    assert started.refresh().state == "running"
    started.kill()


@pytest.mark.parametrize("state", ["paused", "hibernated"])
def test_thinking_leaves_a_sandbox_that_rests_as_it_was(client: Client, sandbox: Sandbox, state: str) -> None:
    # The object here has not heard of it.
    other = Sandbox.connect(sandbox.id, client=client)
    other.pause() if state == "paused" else other.hibernate()
    with sandbox.thinking() as pause:
        while pause.left is None:
            pass
    assert (sandbox.refresh().state, pause.left, pause.hibernated) == (state, state, False)


def test_who_is_interrupted_while_the_sandbox_wakes_leaves_nothing_running(sandbox: Sandbox) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    sandbox.hibernate()
    with pytest.raises(KeyboardInterrupt):
        sandbox.exec("echo begun; hang", on_stdout=interrupt)
    assert [one.wait().signal for one in sandbox.processes()] == ["SIGKILL"]


def test_usage_is_told_of_one_of_some_and_after_the_end(client: Client, sandbox: Sandbox) -> None:
    assert sandbox.usage().sandbox_id == sandbox.id
    sandbox.delete()
    gone = client.sandbox_usage(sandbox.id)
    assert (gone.deleted_at is not None, dict(gone.metadata)) == (True, {"run": "42"})
    report = client.usage({"run": "42"})
    assert [item.sandbox_id for item in report.items] == [sandbox.id]
    assert client.usage({"run": "43"}).items == ()
    assert client.usage_csv({"run": "42"}).count("\r\n") == 2


def test_events_are_read_and_followed(client: Client, sandbox: Sandbox) -> None:
    sandbox.hibernate()
    seen = [event for event in sandbox.events() if event.type == "state"]
    assert [event.data["to"] for event in seen][-2:] == ["hibernating", "hibernated"]
    with closing(client.events(seen[-1].cursor, sandbox=sandbox, follow=True, types=["state"])) as following:
        sandbox.wake()
        woken = next(event for event in following if event.data["to"] == "running")
    assert list(sandbox.events(woken.cursor, types=["state"])) == []


def test_metrics_are_of_all_living_sandboxes(client: Client, sandbox: Sandbox) -> None:
    assert [one.sandbox_id for one in client.metrics().items] == [sandbox.id]


async def test_the_async_twin_starts_listens_and_follows(server: tuple[str, str]) -> None:
    async with AsyncClient(*server) as client, AsyncSandbox.create(client=client) as box:
        started = await box.start("echo one")
        assert [piece async for piece in started] == [("stdout", b"one\n")]
        assert started.exit_code == 0
        assert (await (await box.attach(started.id)).wait()).stdout == "one\n"
        async for event in box.events(follow=True):
            assert event.sandbox_id == box.id
            break
        assert (await box.usage()).sandbox_id == box.id
