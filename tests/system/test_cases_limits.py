"""Guests that take whatever they can get, and a host that has no more: each hurts itself only, and is told so."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from guests import machines_of
from running_server import RunningServer, home_sharing_templates, serving
from torpor import Client, Retry, Sandbox
from torpor.errors import NoCapacity, QuotaExceeded, TorporError
from torpor.model.capacity import MIB, need_of

MACHINES, SANDBOXES = 3, 5
BOMB = ["bash", "-c", "bomb() { while :; do bomb & done; }; bomb"]
AT_ONCE = Retry(attempts=1)


def threads_of(pid: int) -> int:
    """Return how many threads a process of this machine has."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def machine_of(sandbox: Sandbox) -> int:
    """Return the process that runs a sandbox's machine."""
    (pid,) = machines_of(sandbox)
    return pid


def test_fork_bombs_leave_room_for_a_command_a_file_and_a_sibling_and_can_be_killed(
    fresh_sandbox: Sandbox, sandbox: Sandbox
) -> None:
    before = threads_of(machine_of(fresh_sandbox))
    bombs = [fresh_sandbox.start(BOMB) for _ in range(2)]
    assert fresh_sandbox.exec("echo ok", timeout_seconds=60).stdout == "ok\n"
    assert fresh_sandbox.filesystem.write("/root/file", b"1") == 1
    assert sandbox.exec("echo ok", timeout_seconds=60).stdout == "ok\n"
    assert threads_of(machine_of(fresh_sandbox)) <= before + 64, "the host has a thread for what a guest forked"
    for bomb in bombs:
        bomb.kill()
        assert bomb.wait(timeout=120).exit_code == 137
    assert fresh_sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/comm | grep -cx bash"], timeout_seconds=60).stdout == "0\n"


def test_all_of_a_guests_commands_together_leave_the_agent_its_part(sandbox: Sandbox) -> None:
    said = sandbox.exec(
        "cd /sys/fs/cgroup/user; cat pids.max /proc/sys/kernel/threads-max memory.max memory.current cpu.weight;"
        " awk '/MemAvailable/ {print $2 * 1024}' /proc/meminfo",
        check=True,
    ).stdout
    pids, threads, memory, used, weight, available = (int(float(line)) for line in said.split())
    assert pids == threads - threads // 8
    assert 20 * MIB <= used + available - memory <= 64 * MIB
    assert weight < 100


def test_many_who_take_all_memory_are_killed_and_the_agent_and_its_files_are_not(fresh_sandbox: Sandbox) -> None:
    def hog(_: int) -> tuple[int, bool]:
        result = fresh_sandbox.exec("tail /dev/zero", timeout_seconds=300)
        return result.exit_code, result.oom_killed

    fresh_sandbox.filesystem.write("/root/before", b"kept")
    with ThreadPoolExecutor(3) as threads:
        ends = list(threads.map(hog, range(3)))
    assert set(ends) == {(137, True)}
    assert fresh_sandbox.filesystem.read("/root/before") == b"kept"
    assert fresh_sandbox.exec("echo ok").stdout == "ok\n"


@pytest.fixture
def tight(template_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    """A server with memory for MACHINES machines, whose workspaces may have SANDBOXES sandboxes."""
    memory = need_of(256, 4, MACHINES).memory_bytes
    monkeypatch.setenv("TORPOR_MEMORY_MIB", str(-(-memory // MIB)))
    monkeypatch.setenv("TORPOR_MAX_SANDBOXES", str(SANDBOXES))
    with serving(home_sharing_templates(template_home, tmp_path / "home")) as running:
        yield running


def made_at_once(client: Client, count: int) -> tuple[list[Sandbox], list[TorporError]]:
    """Create so many sandboxes at once; return those that came to be, and the errors of the others."""

    def one(_: int) -> Sandbox | TorporError:
        try:
            return Sandbox.create(client=client, ttl_seconds=900)
        except TorporError as error:
            return error

    with ThreadPoolExecutor(count) as threads:
        ends = list(threads.map(one, range(count)))
    return [one for one in ends if isinstance(one, Sandbox)], [one for one in ends if isinstance(one, TorporError)]


def test_at_the_hosts_limit_more_machines_are_refused_with_figures_and_those_there_are_run_on(
    tight: RunningServer,
) -> None:
    with tight.client(retry=AT_ONCE) as client:
        made, errors = made_at_once(client, 10)
        assert len(made) == MACHINES
        assert {type(error) for error in errors} <= {NoCapacity, QuotaExceeded}
        assert any("GiB of memory are promised to" in error.message for error in errors)
        for sandbox in made:  # each takes all it may have, and none of them is killed for it
            assert sandbox.exec("tail /dev/zero", timeout_seconds=300).oom_killed
        assert [sandbox.exec("echo ok").stdout for sandbox in made] == ["ok\n"] * MACHINES
        with pytest.raises(NoCapacity):
            made[0].fork(2)
        assert len(Sandbox.list(client=client)) == MACHINES
        assert client.capacity().machines.used == MACHINES

        made[0].hibernate()
        extra = Sandbox.create(client=client, ttl_seconds=900)
        for refused in (made[0].wake, lambda: made[0].exec("true")):
            with pytest.raises(NoCapacity):
                refused()
        assert made[0].refresh().state == "hibernated"
        extra.delete()
        assert made[0].exec("echo ok").stdout == "ok\n"


def test_at_the_workspaces_limit_more_sandboxes_are_refused_with_limit_use_and_hint(tight: RunningServer) -> None:
    with tight.client(retry=AT_ONCE) as client:
        for _ in range(SANDBOXES):
            Sandbox.create(client=client, ttl_seconds=900).hibernate()
        with pytest.raises(QuotaExceeded, match=f"{SANDBOXES} of {SANDBOXES} sandboxes are yours") as caught:
            Sandbox.create(client=client)
        assert (caught.value.resource, caught.value.limit, caught.value.used) == ("sandboxes", SANDBOXES, SANDBOXES)
        assert caught.value.hint
