"""Control groups, on hosts that are made up of files; and one real group, where this host lets us make it."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from torpor.kit.cgroups import PREFIX, Group, Groups, Limits, Tree, group_of, sweep, trees_here
from torpor.kit.proc import Child

OLD = """\
31 22 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
32 22 0:27 /outer /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory
33 22 0:28 / /sys/fs/cgroup/blkio rw,nosuid - cgroup cgroup rw,blkio
34 22 0:29 / /sys/fs/cgroup/systemd rw,nosuid - cgroup cgroup rw,xattr,name=systemd
35 22 0:30 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw
36 22 0:31 / /tmp rw,nosuid shared:5 - tmpfs tmpfs rw
"""
OLD_OWN = "4:memory:/outer/session\n3:blkio:/\n2:cpu,cpuacct:/users/torpor-0123/place-1\n1:name=systemd:/\n0::/\n"
NEW = "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
SOME = Limits(cpu_weight=50, cpus=1.5, memory_bytes=1 << 28, processes=64)


def a_host(root: Path, mounts: str, own: str, **folders: str) -> None:
    """Make up a host: what its kernel tells, and its folders of groups with the controllers they offer."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(mounts)
    (root / "proc/self/cgroup").write_text(own)
    for name, controllers in folders.items():
        folder = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_", ",").strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.controllers").write_text(controllers)


def written(folder: Path) -> dict[str, str]:
    return {entry.name: entry.read_text().strip() for entry in folder.iterdir() if entry.is_file()}


def test_in_version_1_groups_stand_below_the_own_one_and_beside_ours(tmp_path: Path) -> None:
    a_host(tmp_path, OLD, OLD_OWN, cpu_cpuacct__users="", memory__session="", blkio="", unified="")
    groups = tmp_path / "sys/fs/cgroup"
    assert {tree.folder: set(tree.controllers) for tree in trees_here(tmp_path)} == {
        groups / "cpu,cpuacct/users": {"cpu"},
        groups / "memory/session": {"memory"},
        groups / "blkio": {"io"},
    }


def test_version_2_has_one_tree_with_what_it_offers(tmp_path: Path) -> None:
    a_host(tmp_path, NEW, "0::/user.slice/session-1.scope\n", __="cpuset cpu io memory pids\n")
    assert trees_here(tmp_path) == [Tree(tmp_path / "sys/fs/cgroup", 2, frozenset({"cpu", "io", "memory", "pids"}))]


def test_a_host_without_control_groups_has_none(tmp_path: Path) -> None:
    a_host(tmp_path, "36 22 0:31 / /tmp rw - tmpfs tmpfs rw\n", "")
    assert trees_here(tmp_path) == []
    assert not Groups("torpor-x", ()).is_whole


def test_a_group_of_version_1_gets_its_limits_and_its_top_the_weight_of_all(tmp_path: Path) -> None:
    trees = tuple(Tree(tmp_path / name, 1, frozenset({name})) for name in ("cpu", "memory", "pids", "io"))
    for tree in trees:
        tree.folder.mkdir()
    Groups("torpor-x", trees, weight=25).make("one", SOME)
    assert written(tmp_path / "cpu/torpor-x") == {"cpu.shares": "256"}
    assert written(tmp_path / "cpu/torpor-x/one") == {"cpu.shares": "512", "cpu.cfs_quota_us": "150000"}
    assert written(tmp_path / "memory/torpor-x/one") == {"memory.limit_in_bytes": "268435456"}
    assert written(tmp_path / "pids/torpor-x/one") == {"pids.max": "64"}
    assert written(tmp_path / "io/torpor-x/one") == {}  # whether disks have weights depends on their scheduler


def test_a_group_of_version_2_gets_its_limits_and_what_is_above_it_lets_it(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 2, frozenset({"cpu", "memory", "pids"}))
    Groups("torpor-x", (tree,), weight=25).make("one", SOME)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+pids\n"  # each is a write of its own
    assert written(tmp_path / "torpor-x")["cpu.weight"] == "25"
    assert written(tmp_path / "torpor-x/one") == {
        "cpu.weight": "50",
        "cpu.max": "150000 100000",
        "memory.max": "268435456",
        "pids.max": "64",
    }


def test_a_group_that_cannot_be_made_whole_is_not_made(tmp_path: Path) -> None:
    good, bad = Tree(tmp_path / "cpu", 1, frozenset()), Tree(tmp_path / "none", 1, frozenset({"memory"}))
    good.folder.mkdir()
    with pytest.raises(FileNotFoundError):
        Groups("torpor-x", (good, bad)).make("one", SOME)
    assert list(good.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "says", "killed"),
    [
        ("memory.events", "low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\noom_group_kill 0\n", True),
        ("memory.events", "low 0\nhigh 0\nmax 12\noom 0\noom_kill 0\noom_group_kill 0\n", False),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", True),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", False),
        ("memory.stat", "oom_kill 1\n", False),
    ],
)
def test_a_group_knows_whether_it_ran_out_of_memory(tmp_path: Path, file: str, says: str, killed: bool) -> None:
    (tmp_path / file).write_text(says)
    assert Group((tmp_path,)).killed_for_memory() is killed


def test_the_sweep_takes_what_nobody_is_in_and_leaves_the_rest(tmp_path: Path) -> None:
    for name in ("torpor-x/empty", "torpor-x/used", "torpor-y/empty"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "torpor-x/used/somebody").touch()  # what cannot be removed
    tops = [tmp_path / "torpor-x", tmp_path / "torpor-y", tmp_path / "torpor-z"]
    assert sweep(tops) == [tmp_path / "torpor-x"]
    assert [entry.name for entry in (tmp_path / "torpor-x").iterdir()] == ["used"]


def test_a_process_outside_is_in_no_group_of_ours_and_one_that_has_ended_in_none() -> None:
    assert group_of(os.getpid()) is None
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert group_of(ended.pid) is None


@pytest.fixture
def real() -> Iterator[Groups]:
    groups = Groups(f"{PREFIX}test-{secrets.token_hex(4)}", tuple(trees_here()))
    if not groups.is_whole:
        pytest.skip("this host lets nobody limit processors, memory and processes")
    yield groups
    assert [top for top in groups.tops if top.exists()] == []


async def test_a_real_group_holds_its_process_and_goes_with_it(real: Groups) -> None:
    group = real.make("one", SOME)
    sleeper = Child(["sleep", "100"])
    try:
        group.add(sleeper.pid)
        assert group_of(sleeper.pid) == group
        assert not group.remove_now()
        removing = asyncio.create_task(group.remove())
    finally:
        await sleeper.kill()
    assert await removing
    assert not group.killed_for_memory()


async def test_a_process_that_needs_more_memory_than_its_real_group_has_is_ended_and_no_other(real: Groups) -> None:
    small, other = (real.make(name, Limits(memory_bytes=64 << 20)) for name in ("small", "other"))
    joining = "".join(f"echo $$ >{folder}/cgroup.procs; " for folder in small.folders)
    hog, sleeper = Child(["sh", "-c", f"{joining} exec tail /dev/zero"]), Child(["sleep", "100"])
    try:
        other.add(sleeper.pid)
        async with asyncio.timeout(60):
            await hog.gone.wait()
        assert hog.code == -signal.SIGKILL
        assert (small.killed_for_memory(), other.killed_for_memory(), sleeper.code) == (True, False, None)
    finally:
        await hog.kill()
        await sleeper.kill()
        assert [await group.remove() for group in (small, other)] == [True, True]


def test_another_removes_the_empty_top_while_a_group_is_made(real: Groups) -> None:
    for _ in range(20):
        group = real.make("one", Limits())
        assert group.remove_now()
        assert sweep(real.tops) == []
