"""A server that is killed, and one that is asked to end: what is left afterwards."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from running_server import RunningServer, serving
from torpor import Client, Retry, Sandbox
from torpor.errors import TorporError
from torpor.storage.volume import use_volume

ONE_TRY = Retry(attempts=1)
CREATES = 8


def processes_of(home: Path) -> list[str]:
    """Return the command lines that name something in a data directory, servers left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                argv = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(f"{home}/".encode() in word for word in argv):
                found.append(b" ".join(argv).decode(errors="replace"))
    return found


def mounts_of(home: Path) -> list[str]:
    """Return what is mounted in a data directory, but for its volume."""
    volume = f" {home / 'volume'} "
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if f"{home}/" in line and volume not in line]


def remains_of(home: Path) -> list[str]:
    """Return the files of sandboxes, and drafts, in a data directory."""
    with use_volume(home) as layout:
        drafts = [*home.glob(".*"), *layout.snapshots.glob(".*"), *layout.templates.glob(".*")]
        return [str(path) for path in [*layout.sandboxes.iterdir(), *drafts]]


def create_and_kill(running: RunningServer) -> list[Future[Sandbox]]:
    """Ask for several sandboxes at once and kill the server as soon as the first is there."""
    with running.client(retry=ONE_TRY) as client, ThreadPoolExecutor(CREATES) as pool:
        creates = [pool.submit(Sandbox.create, client=client, ttl_seconds=600) for _ in range(CREATES)]
        wait(creates, return_when="FIRST_COMPLETED")
        running.kill()
        wait(creates)
    return creates


def test_a_server_killed_in_the_middle_of_creates_leaves_nothing_after_its_next_start(fresh_home: Path) -> None:
    with serving(fresh_home) as running:
        creates = create_and_kill(running)
    errors = [error for create in creates if (error := create.exception()) is not None]
    assert errors, "the server was killed too late to be in the middle of anything"
    assert all(isinstance(error, TorporError) for error in errors), errors

    with serving(fresh_home) as running, running.client() as client:
        assert processes_of(fresh_home) == []
        assert mounts_of(fresh_home) == []
        assert remains_of(fresh_home) == []
        states = {sandbox.id: sandbox.state for sandbox in Sandbox.list(client=client)}
        assert set(states.values()) <= {"failed"}, states
        answered = {create.result().id for create in creates if create.exception() is None}
        assert answered <= set(states), "a sandbox that was handed out is not known any more"
        assert_usable(client, states)


def assert_usable(client: Client, states: dict[str, str]) -> None:
    """Failed sandboxes can be deleted, and new ones made."""
    for id in states:
        sandbox = Sandbox.connect(id, client=client)
        assert sandbox.info.reason
        sandbox.delete()
    assert list(Sandbox.list(client=client)) == []
    with Sandbox.create(client=client, ttl_seconds=600) as sandbox:
        assert sandbox.exec("echo well").stdout == "well\n"


def test_a_server_that_is_asked_to_end_ends_its_machines_first(fresh_home: Path) -> None:
    with serving(fresh_home) as running:
        with running.client() as client:
            Sandbox.create(client=client, ttl_seconds=600)
        assert running.stop() == 0
        assert processes_of(fresh_home) == []
        assert mounts_of(fresh_home) == []
        assert not (fresh_home / "volume").is_mount()
        assert remains_of(fresh_home) == []


def test_a_server_killed_in_the_middle_of_hibernations_finds_each_sandbox_asleep_or_lost(fresh_home: Path) -> None:
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
        assert {sandbox.state for sandbox in states.values()} <= {"hibernated", "failed"}
        assert {states[id].state for id in told} == {"hibernated"}, "what was told to sleep sleeps"
        for sandbox in states.values():
            if sandbox.state == "hibernated":
                assert sandbox.filesystem.read_text("/root/who") == sandbox.id
            sandbox.delete()
        assert remains_of(fresh_home) == []


def test_a_second_server_on_the_same_data_directory_is_refused(fresh_home: Path) -> None:
    import subprocess
    import sys

    with serving(fresh_home) as running:
        argv = [sys.executable, "-m", "torpor.cli", "serve", "--home", str(fresh_home), "--port", "0"]
        second = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
        assert second.returncode != 0
        assert "Traceback" not in second.stderr
        assert str(running.process.pid) in second.stderr + second.stdout
