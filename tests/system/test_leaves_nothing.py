"""Many sandboxes come and go on a real server, and the host is as it was: processes, mounts, groups, files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from guests import processes_named
from home_remains import processes_of
from running_server import RunningServer, serving
from torpor import Client, Sandbox

ROUNDS = int(os.environ.get("TORPOR_TEST_ROUNDS", "50"))


def processes_below(pid: int) -> set[int]:
    """Return the processes that a process has started, and they, and so on."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, new = set[int](), [pid]
    while new:
        new = [child for each in new for child in children.get(each, [])]
        found.update(new)
    return found


def what_there_is(running: RunningServer) -> dict[str, object]:
    """Return what a server has of the host, while it has no sandbox."""
    pid, home = running.process.pid, running.home
    return {
        "processes": len(processes_below(pid)),
        "machines": processes_of(running.data / "sandboxes"),
        "guards": [each for each in processes_named("bwrap") if each in processes_below(pid)],
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "mounts": [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{home}/" in line],
        "groups": [line for line in (home / "cgroups").read_text().splitlines() if Path(line).exists()],
        "sandboxes": os.listdir(running.data / "sandboxes"),
        "files": sorted(str(path.relative_to(home)) for path in home.rglob("*") if "volume" not in path.parts),
    }


def one_round(client: Client, number: int) -> None:
    with Sandbox.create(client=client, ttl_seconds=600) as sandbox:
        if number % 10 == 0:
            assert sandbox.exec("echo here").stdout == "here\n"
        if number % 10 == 5:
            sandbox.hibernate()


@pytest.fixture
def without_spares(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spare is a machine that is kept for the next create, so that what there is would change with time."""
    monkeypatch.setenv("TORPOR_SPARE_SECONDS", "0")


@pytest.mark.usefixtures("without_spares")
def test_rounds_of_creates_and_deletes_leave_the_host_as_it_was(fresh_home: Path) -> None:
    with serving(fresh_home) as running, running.client() as client:
        for number in range(3):  # what is made once, and kept
            one_round(client, number)
        before = what_there_is(running)
        for number in range(ROUNDS):
            one_round(client, number)
        assert what_there_is(running) == before
        assert before["machines"] == before["guards"] == before["groups"] == before["sandboxes"] == []
