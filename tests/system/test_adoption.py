"""A server that is killed while real guests run, and the next one, which takes them over."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

from guests import clock_error_s, machines_of
from home_remains import mounts_of, processes_of, remains_of
from running_server import serving
from torpor import Sandbox
from torpor.storage.loop import unmount

PATIENCE_S = 60.0
# Counts on for as long as it runs, ten times a second.
COUNTER = """
nohup sh -c '
n=0
while sleep 0.1; do n=$((n + 1)); echo $n > /tmp/count.new; mv /tmp/count.new /tmp/count; done
' > /dev/null 2>&1 &
"""


def count_of(sandbox: Sandbox) -> int:
    """Return how far the counter is."""
    return int(sandbox.exec("until [ -s /tmp/count ]; do sleep 0.05; done; cat /tmp/count", check=True).stdout)


def machine_of(sandbox: Sandbox) -> int:
    (pid,) = machines_of(sandbox)
    return pid


def wait_ended(pid: int) -> bool:
    """Wait until a process that is no child of ours has ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], PATIENCE_S)[0])
    finally:
        os.close(process)


def test_a_killed_server_s_machines_run_on_and_the_next_one_takes_them_over(fresh_home: Path) -> None:
    with serving(fresh_home) as first, first.client() as client:
        running, other, asleep, paused = (Sandbox.create(client=client, ttl_seconds=1800) for _ in range(4))
        running.exec(COUNTER, check=True)
        for sandbox in (other, asleep, paused):
            sandbox.filesystem.write("/dev/shm/who", sandbox.id)
        running.exec("echo said before > /dev/console", check=True)
        asleep.hibernate()
        paused.pause()
        pids = {sandbox.id: machine_of(sandbox) for sandbox in (running, other, paused)}
        before = count_of(running)
        first.kill()
    assert {sandbox.id: machine_of(sandbox) for sandbox in (running, other, paused)} == pids

    with serving(fresh_home) as second, second.client() as client:
        states = {sandbox.id: sandbox.state for sandbox in Sandbox.list(client=client)}
        assert states == {running.id: "running", other.id: "running", asleep.id: "hibernated", paused.id: "paused"}
        ids = [each.id for each in (running, other, asleep, paused)]
        running, other, asleep, paused = (Sandbox.connect(each, client=client) for each in ids)
        assert {sandbox.id: machine_of(sandbox) for sandbox in (running, other, paused)} == pids
        assert count_of(running) > before
        assert clock_error_s(running) < 1
        running.exec("echo said after > /dev/console", check=True)
        for sandbox in (other, asleep):
            assert sandbox.filesystem.read_text("/dev/shm/who") == sandbox.id
        paused.resume()
        assert paused.filesystem.read_text("/dev/shm/who") == paused.id
        running.hibernate()
        asleep_at = count_of(running)  # wakes it
        assert asleep_at > before
        assert machine_of(running) != pids[running.id]
        logs = running.logs()
        assert logs.index("said before") < logs.index("said after")
        for sandbox in (running, other, asleep, paused):
            sandbox.delete()
    assert processes_of(fresh_home) == []
    assert mounts_of(fresh_home) == []
    assert remains_of(fresh_home) == []


def test_a_machine_ends_at_its_deadline_though_no_server_lives(fresh_home: Path) -> None:
    with serving(fresh_home) as first, first.client() as client:
        short, long = (Sandbox.create(client=client, ttl_seconds=ttl) for ttl in (6, 1800))
        pids = [machine_of(sandbox) for sandbox in (short, long)]
        first.kill()
    assert wait_ended(pids[0])
    assert Path(f"/proc/{pids[1]}").exists()
    with serving(fresh_home) as second, second.client() as client:
        states = {sandbox.id: sandbox.state for sandbox in Sandbox.list(client=client)}
        assert states.pop(long.id) == "running"
        assert states.get(short.id) in (None, "failed", "deleting"), "it is being removed, as its life is over"
        Sandbox.connect(long.id, client=client).delete()
    assert processes_of(fresh_home) == []


def test_after_the_host_was_booted_again_sleepers_wake_and_what_ran_can_be_gone_back_to(fresh_home: Path) -> None:
    with serving(fresh_home) as first, first.client() as client:
        asleep, running = (Sandbox.create(client=client, ttl_seconds=1800) for _ in range(2))
        for sandbox in (asleep, running):
            sandbox.filesystem.write("/dev/shm/who", sandbox.id)
        asleep.hibernate()
        checkpoint = running.snapshot()
        pid = machine_of(running)
        first.kill()
    os.kill(pid, signal.SIGKILL)
    assert wait_ended(pid)
    assert wait_ended(int((fresh_home / "keeper").read_text()))  # nothing is left to look after
    if (fresh_home / "volume").is_mount():
        unmount(fresh_home / "volume")

    with serving(fresh_home) as second, second.client() as client:
        states = {sandbox.id: sandbox for sandbox in Sandbox.list(client=client)}
        assert {id: sandbox.state for id, sandbox in states.items()} == {asleep.id: "hibernated", running.id: "failed"}
        assert "while no server ran" in str(states[running.id].info.reason)
        assert states[asleep.id].filesystem.read_text("/dev/shm/who") == asleep.id
        states[running.id].rollback(checkpoint)
        assert states[running.id].filesystem.read_text("/dev/shm/who") == running.id
        for sandbox in states.values():
            sandbox.delete()
    assert processes_of(fresh_home) == []
