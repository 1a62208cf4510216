"""The SDK against the real control plane, over a fake host."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torpor import (
    AsyncClient,
    AsyncSandbox,
    Client,
    Conflict,
    ExecTimeout,
    HostUnreachable,
    InvalidRequest,
    NoCapacity,
    NotFound,
    Retry,
    Sandbox,
    Unauthenticated,
)
from torpor.testing.host import FakeHost
from torpor.testing.server import running_server

MIB = 1024 * 1024


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
    with Client(*server) as client:
        yield client


@pytest.fixture
def sandbox(client: Client) -> Sandbox:
    return Sandbox.create("agent", metadata={"run": "42"}, client=client)


def test_a_run_from_create_to_delete(client: Client) -> None:
    with Sandbox.create("agent", ttl_seconds=60, metadata={"run": "1"}, env={"A": "sandbox"}, client=client) as box:
        assert (box.state, box.template, dict(box.metadata)) == ("running", "agent", {"run": "1"})
        box.filesystem.write("/work/a.txt", "é")
        result = box.exec("cat /work/a.txt; echo $A; exit 3", env={"A": "command"})
        assert (result.stdout, result.exit_code, result.truncated) == ("écommand\n", 3, False)
        assert box.exec("echo oops >&2").stderr == "oops\n"
        assert Sandbox.connect(box.id, client=client).info == box.refresh()
        assert box.set_ttl(120).ttl_seconds == 120
        assert box.id in box.logs()
    with pytest.raises(NotFound):
        Sandbox.connect(box.id, client=client)
    box.delete()


def test_a_listing_finds_by_metadata_and_state(client: Client, sandbox: Sandbox) -> None:
    other = Sandbox.create(client=client)
    assert [box.id for box in Sandbox.list({"run": "42"}, client=client)] == [sandbox.id]
    assert [box.id for box in Sandbox.list(state="failed", client=client)] == []
    first = Sandbox.list(limit=1, client=client)
    second = Sandbox.list(limit=1, cursor=first.next_cursor, client=client)
    assert {box.id for box in [*first, *second]} == {sandbox.id, other.id}
    assert {box.id for box in Sandbox.iterate(client=client)} == {sandbox.id, other.id}


def test_a_create_whose_answer_is_lost_makes_one_sandbox(client: Client, host: FakeHost) -> None:
    host.lose_answer("restore")
    host.fail("restore", NoCapacity("no room"))
    quick = Retry(attempts=3, first_delay_s=0.0)
    with Client(client.api, os.environ["TORPOR_API_KEY"], retry=quick) as hasty:
        box = Sandbox.create(name="once", client=hasty)
        assert [found.id for found in Sandbox.iterate(client=hasty) if found.state == "running"] == [box.id]


def test_bytes_are_exact_both_ways(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 1000
    assert sandbox.exec(["cat"], stdin=data).stdout_bytes == data
    sandbox.filesystem.write("/work/raw", data)
    sandbox.filesystem.append("/work/raw", b"end")
    assert sandbox.filesystem.read("/work/raw") == data + b"end"


def test_large_output_arrives_whole(sandbox: Sandbox) -> None:
    seen = 0

    def count(piece: bytes) -> None:
        nonlocal seen
        seen += len(piece)

    result = sandbox.exec(["blob", str(5 * MIB)], on_stdout=count, binary=True)
    assert (seen, len(result.stdout), result.truncated) == (5 * MIB, 5 * MIB, False)


def test_a_timeout_raises_with_the_output_so_far(sandbox: Sandbox) -> None:
    with pytest.raises(ExecTimeout) as caught:
        sandbox.exec("echo begun; hang", timeout_seconds=0.2)
    assert caught.value.stdout == "begun\n"


def test_files_and_folders(sandbox: Sandbox) -> None:
    files = sandbox.filesystem
    files.write("/work/sub/a", "1", mode=0o600, user="worker")
    entry = files.stat("/work/sub/a")
    assert (entry.size, entry.mode, entry.user, entry.is_dir) == (1, 0o600, "worker", False)
    files.mkdir("/work/empty")
    files.rename("/work/sub/a", "/work/sub/b")
    assert [found.name for found in files.list("/work")] == ["empty", "sub"]
    assert [found.path for found in files.walk("/work")] == ["/work/empty", "/work/sub", "/work/sub/b"]
    assert files.read_text("/work/sub/b") == "1"
    assert not files.exists("/work/sub/a")
    files.remove("/work", recursive=True)
    with pytest.raises(NotFound):
        files.read("/work/sub/b")


def test_names_that_are_no_text_go_up_and_come_back_the_same(sandbox: Sandbox, tmp_path: Path) -> None:
    names = {b"caf\xc3\xa9", b"caf\xe9", b"\xff\xfe"}
    there, back = tmp_path / "there", tmp_path / "back"
    there.mkdir()
    for name in names:
        with open(os.fsencode(there) + b"/" + name, "wb") as file:
            file.write(name)
    assert sandbox.files.upload(there, "/work/names").files == len(names)
    assert sandbox.files.download("/work/names", back).files == len(names)
    assert set(os.listdir(os.fsencode(back))) == names


def test_a_folder_goes_up_and_comes_back_the_same(sandbox: Sandbox, tmp_path: Path) -> None:
    there = tmp_path / "there"
    (there / "deep" / "er").mkdir(parents=True)
    (there / "deep" / "er" / "ünï").write_bytes(os.urandom(100_000))
    (there / "run").write_text("#!/bin/sh\n")
    (there / "run").chmod(0o755)
    assert sandbox.filesystem.upload(there, "/work/copy").files == 2
    back = tmp_path / "back"
    assert sandbox.filesystem.download("/work/copy", back).files == 2
    for path in there.rglob("*"):
        twin = back / path.relative_to(there)
        assert twin.is_dir() if path.is_dir() else twin.read_bytes() == path.read_bytes()
    assert (back / "run").stat().st_mode & 0o777 == 0o755


def test_a_large_file_streams_up_and_down(sandbox: Sandbox, tmp_path: Path) -> None:
    local = tmp_path / "blob"
    local.write_bytes(os.urandom(MIB) * 8)
    sandbox.filesystem.upload(local, "/work/blob")
    sandbox.filesystem.download("/work/blob", tmp_path / "back")
    wanted, got = (hashlib.sha256(path.read_bytes()).digest() for path in (local, tmp_path / "back"))
    assert wanted == got


def test_refusals_have_their_types(client: Client, sandbox: Sandbox) -> None:
    with pytest.raises(InvalidRequest, match="no template 'nope'"):
        Sandbox.create("nope", client=client)
    with pytest.raises(InvalidRequest):
        sandbox.exec("")
    Sandbox.create(name="taken", client=client)
    with pytest.raises(Conflict, match="taken"):
        Sandbox.create(name="taken", client=client)
    with pytest.raises(NotFound):
        Sandbox.connect("sbx-0000000000000000", client=client)
    with Client(client.api, "wrong") as stranger, pytest.raises(Unauthenticated):
        Sandbox.list(client=stranger)


def test_many_threads_share_one_client(sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda number: sandbox.exec(f"echo {number}; exit {number}"), range(40))
    assert [(one.stdout, one.exit_code) for one in results] == [(f"{n}\n", n) for n in range(40)]


def test_a_command_that_runs_longer_than_the_request_timeout_is_not_cut(server: tuple[str, str]) -> None:
    with Client(*server, request_timeout=0.2) as client, Sandbox.create(client=client, request_timeout=10) as box:
        assert box.exec("sleep 0.5; echo done").stdout == "done\n"


def test_a_server_that_is_gone_is_unreachable(tmp_path: Path) -> None:
    with running_server(tmp_path / "home") as (url, key):
        client = Client(url, key, retry=Retry(attempts=2, first_delay_s=0.0))
        box = Sandbox.create(client=client)
    with client, pytest.raises(HostUnreachable, match="no Torpor server answers"):
        box.exec("true")


def test_the_default_client_is_shared_by_threads_and_found_again_after_a_fork(server: tuple[str, str]) -> None:
    program = """
import os, sys, threading
from torpor import Sandbox
sandbox = Sandbox.create()
assert Sandbox.create()._client is sandbox._client
assert sandbox.exec("echo parent").stdout == "parent\\n"
child = os.fork()
if child == 0:
    said = [sandbox.exec(f"echo child {number}").stdout for number in range(5)]
    os._exit(0 if said == [f"child {number}\\n" for number in range(5)] else 1)
said = [sandbox.exec(f"echo parent {number}").stdout for number in range(5)]
assert said == [f"parent {number}\\n" for number in range(5)], said
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_default_async_client_is_closed_with_its_loop(server: tuple[str, str]) -> None:
    program = """
import asyncio
from torpor import AsyncSandbox
async def main():
    asyncio.get_running_loop().slow_callback_duration = 60  # a busy machine is nothing to report
    sandboxes = await asyncio.gather(*(AsyncSandbox.create() for _ in range(3)))
    assert len({id(sandbox._client) for sandbox in sandboxes}) == 1
    assert (await sandboxes[0].exec("echo hi")).stdout == "hi\\n"
asyncio.run(main())
asyncio.run(main())
"""
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


async def test_the_async_twin_does_the_same(server: tuple[str, str], tmp_path: Path) -> None:
    async with AsyncClient(*server) as client:
        async with AsyncSandbox.create("agent", client=client) as box:
            async with asyncio.TaskGroup() as group:
                runs = [group.create_task(box.exec(f"echo {n}")) for n in range(10)]
            assert [run.result().stdout for run in runs] == [f"{n}\n" for n in range(10)]
            (tmp_path / "a").write_bytes(b"x" * MIB)
            await box.filesystem.upload(tmp_path / "a", "/work/a")
            await box.filesystem.download("/work/a", tmp_path / "b")
            assert [entry.path async for entry in box.filesystem.walk("/work")] == ["/work/a"]
            assert box.id in [found.id async for found in AsyncSandbox.iterate(client=client)]
        with pytest.raises(NotFound):
            await AsyncSandbox.connect(box.id, client=client)


async def test_a_cancelled_exec_kills_its_command_and_leaves_the_client_usable(
    server: tuple[str, str], host: FakeHost
) -> None:
    async with AsyncClient(*server) as client, AsyncSandbox.create(client=client) as box:
        heard = asyncio.Event()
        running = asyncio.create_task(box.exec("echo begun; hang", on_stdout=lambda _: heard.set()))
        await heard.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await box.exec("echo after")).stdout == "after\n"


def test_an_interrupted_command_leaves_the_client_usable(sandbox: Sandbox) -> None:
    with pytest.raises(KeyboardInterrupt):
        sandbox.exec("echo begun; hang", on_stdout=_interrupt)
    assert sandbox.exec("echo after").stdout == "after\n"


def _interrupt(_: str) -> None:
    raise KeyboardInterrupt


def test_templates_are_listed_with_their_cold_boot(client: Client) -> None:
    assert {template.name: template.cold_boot_ms for template in client.templates.list()} == {
        "base": 4500,
        "agent": 4500,
    }
    client.templates.delete("agent")
    with pytest.raises(NotFound):
        client.templates.delete("agent")
