"""A server that is killed, and one that is asked to end: what is left afterwards."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from home_remains import mounts_of, processes_of, remains_of, vmms_of
from running_server import RunningServer, serving
from torpor import Client, Retry, Sandbox
from torpor.errors import TorporError

ONE_TRY = Retry(attempts=1)
CREATES = 8


def create_and_kill(running: RunningServer) -> list[Future[Sandbox]]:
    """Ask for several sandboxes at once and kill the server as soon as the first is there."""
    with running.client(retry=ONE_TRY) as client, ThreadPoolExecutor(CREATES) as pool:
        creates = [pool.submit(Sandbox.create, client=client, ttl_seconds=600) for _ in range(CREATES)]
        wait(creates, return_when="FIRST_COMPLETED")
        running.kill()
        wait(creates)
    return creates


def test_a_server_killed_in_the_middle_of_creates_has_whole_sandboxes_or_none_after_its_next_start(
    fresh_home: Path,
) -> None:
    with serving(fresh_home) as running:
        creates = create_and_kill(running)
    errors = [error for create in creates if (error := create.exception()) is not None]
    assert errors, "the server was killed too late to be in the middle of anything"
    assert all(isinstance(error, TorporError) for error in errors), errors

    with serving(fresh_home) as running, running.client() as client:
        states = {sandbox.id: sandbox.state for sandbox in Sandbox.list(client=client)}
        assert set(states.values()) <= {"running"}, states
        answered = {create.result().id for create in creates if create.exception() is None}
        assert answered <= set(states), "a sandbox that was handed out is not known any more"
        assert len(vmms_of(fresh_home)) == len(states), "each machine is somebody's"
        assert mounts_of(fresh_home) == []
        assert sorted(remains_of(fresh_home)) == sorted(states)
        assert_usable(client, states)
    assert processes_of(fresh_home) == []
    assert remains_of(fresh_home) == []


def assert_usable(client: Client, states: dict[str, str]) -> None:
    """Those that are there answer, and can be deleted; and new ones can be made."""
    for id in states:
        sandbox = Sandbox.connect(id, client=client)
        assert sandbox.exec("echo well").stdout == "well\n"
        sandbox.delete()
    assert list(Sandbox.list(client=client)) == []
    with Sandbox.create(client=client, ttl_seconds=600) as sandbox:
        assert sandbox.exec("echo well").stdout == "well\n"


def test_a_server_killed_in_the_middle_of_hibernations_finds_each_sandbox_asleep_or_awake(fresh_home: Path) -> None:
    with serving(fresh_home) as running, running.client(retry=ONE_TRY) as client:
        sandboxes = [Sandbox.create(client=client, ttl_seconds=600) for _ in range(6)]
        for sandbox in sandboxes:
            sandbox.filesystem.write("/root/who", sandbox.id)
        with ThreadPoolExecutor(len(sandboxes)) as pool:
            asked = {pool.submit(sandbox.hibernate): sandbox.id for sandbox in sandboxes}
            wait(asked, return_when="FIRST_COMPLETED")
            running.kill()
            wait(asked)
        told = {id for future, id in asked.items() if future.exception() is None}

    with serving(fresh_home) as running, running.client() as client:
        states = {sandbox.id: sandbox for sandbox in Sandbox.list(client=client)}
        assert {sandbox.state for sandbox in states.values()} <= {"hibernated", "running"}
        assert {states[id].state for id in told} == {"hibernated"}, "what was told to sleep sleeps"
        for sandbox in states.values():
            assert sandbox.filesystem.read_text("/root/who") == sandbox.id
            sandbox.delete()
        assert remains_of(fresh_home) == []
    assert processes_of(fresh_home) == []


def test_a_second_server_on_the_same_data_directory_is_refused(fresh_home: Path) -> None:
    with serving(fresh_home) as running:
        argv = [sys.executable, "-m", "torpor.cli", "serve", "--home", str(fresh_home), "--port", "0"]
        second = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
        assert second.returncode != 0
        assert "Traceback" not in second.stderr
        assert str(running.process.pid) in second.stderr + second.stdout
