"""Control groups: how much of the host some processes may have. Both versions of them, which Linux has side by side.

Version 1 has one tree for each controller, and a group may have processes and groups below it; ours stand below the
group that this program is in. Version 2 has one tree for all, and a group whose children are controlled has no
processes; ours stand at the top of what can be seen of it, as only there nothing has to be moved.

Names: a *top* is the group of one owner, such as `torpor-1f3a`; the *groups* below it are what processes are put into.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PREFIX = "torpor-"
_WANTED = ("cpu", "memory", "pids", "io")
# What version 1 calls it.
_OLD_NAMES = {"blkio": "io"}
_PERIOD_US = 100_000
# A weight of 100 is what a process outside has: in version 1, a thousand shares.
_SHARES_EACH = 1024 / 100
_ATTEMPTS = 3
# The kernel lets a group go some milliseconds after its last process has ended.
_REMOVAL_S, _AGAIN_S = 2.0, 0.005


@dataclass(frozen=True, slots=True)
class Limits:
    """What a group may have; None: as much as there is.

    Weights say who gets how much when all want more than there is: 1 to 10000, and 100 is the usual. `cpus`: the time
    of so many processors, such as 1.5. `memory_bytes` is memory with the page cache, which is given back first; a group
    that needs more loses a process. `processes` counts threads too.
    """

    cpu_weight: int = 100
    io_weight: int = 100
    cpus: float | None = None
    memory_bytes: int | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of groups: the folder below which groups can be made, its version, and what can be controlled there."""

    folder: Path
    version: int
    controllers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Group:
    """A group of processes: its folder in each tree."""

    folders: tuple[Path, ...]

    def add(self, pid: int) -> None:
        """Put a process into it. Raises OSError, ProcessLookupError if there is no such process."""
        for folder in self.folders:
            _write(folder / "cgroup.procs", pid)

    def killed_for_memory(self) -> bool:
        """Tell whether one of its processes was killed because it needed more memory than the group may have."""
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                if any(line.split()[1:] != ["0"] for line in _lines(folder / name) if line.startswith("oom_kill ")):
                    return True
        return False

    async def remove(self) -> bool:
        """Remove it, and its top if nothing else is there, as soon as its last process has ended; return whether."""
        until = time.monotonic() + _REMOVAL_S
        while True:
            if (done := self.remove_now()) or time.monotonic() > until:
                return done
            await asyncio.sleep(_AGAIN_S)

    def remove_now(self) -> bool:
        """Remove it, and its top if nothing else is there; return whether: not while a process is in it."""
        left = [folder for folder in self.folders if not _removed(folder)]
        for folder in self.folders:
            _removed(folder.parent)
        return not left


@dataclass(frozen=True, slots=True)
class Groups:
    """Where one owner's groups are made: the `name` of its top, its trees, and what all its groups weigh together."""

    name: str
    trees: tuple[Tree, ...]
    weight: int = 100

    @property
    def controllers(self) -> frozenset[str]:
        """What can be controlled: some of "cpu", "memory", "pids", "io"."""
        return frozenset(name for tree in self.trees for name in tree.controllers)

    @property
    def is_whole(self) -> bool:
        """Whether processors, memory and processes can be limited."""
        return {"cpu", "memory", "pids"} <= self.controllers

    @property
    def tops(self) -> list[Path]:
        """The top in each tree, whether it is there or not."""
        return [tree.folder / self.name for tree in self.trees]

    def make(self, name: str, limits: Limits) -> Group:
        """Make a group, which must not exist, with its limits. Raises OSError, and then it does not."""
        group = Group(tuple(sorted(top / name for top in self.tops)))
        try:
            for tree in self.trees:
                self._make_folder(tree, name)
                _apply(tree, tree.folder / self.name / name, limits)
        except BaseException:
            group.remove_now()
            raise
        return group

    def _make_folder(self, tree: Tree, name: str) -> None:
        top = tree.folder / self.name
        for last in reversed(range(_ATTEMPTS)):
            try:
                if not top.is_dir():
                    top.mkdir(exist_ok=True)
                    _open_up(tree, top)
                    _apply(tree, top, Limits(cpu_weight=self.weight, io_weight=self.weight))
                (top / name).mkdir()
            except FileNotFoundError:  # somebody has removed the empty top meanwhile
                if last == 0:
                    raise
            else:
                return


def trees_here(root: Path = Path("/")) -> list[Tree]:
    """Return the trees of control groups that this program may make groups in.

    `root`: where to look for what the kernel tells. Raises OSError if that cannot be read.
    """
    own = _groups_in(root / "proc/self/cgroup")
    found: dict[Path, Tree] = {}
    for mount in _mounts(root):
        folder = _outside(mount.folder_of(own.get(mount.key, "/"))) if mount.version == 1 else mount.place
        before = found.get(folder)
        controllers = mount.controllers | (before.controllers if before else frozenset())
        if controllers:
            found[folder] = Tree(folder, mount.version, controllers)
    return [tree for tree in found.values() if os.access(tree.folder, os.W_OK)]


def group_of(pid: int, root: Path = Path("/")) -> Group | None:
    """Return the group of somebody's making here that a process is in; None if it is in none, or has ended."""
    try:
        own = _groups_in(root / f"proc/{pid}/cgroup")
        folders = {mount.folder_of(own[mount.key]) for mount in _mounts(root) if mount.key in own}
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    ours = sorted(folder for folder in folders if folder.parent.name.startswith(PREFIX))
    return Group(tuple(ours)) if ours else None


def sweep(tops: Iterable[Path]) -> list[Path]:
    """Remove the groups below these tops that no process is in, and the tops if none is left; return what is left."""
    for top in tops:
        for folder in _folders_in(top):
            _removed(folder)
        _removed(top)
    return [top for top in tops if top.is_dir()]


@dataclass(frozen=True, slots=True)
class _Mount:
    """Where one tree is mounted. `key` is what the kernel calls it when it tells of a process's groups; `above` is the
    group that is seen as the tree's root.
    """

    version: int
    key: str
    place: Path
    above: str
    controllers: frozenset[str]

    def folder_of(self, group: str) -> Path:
        """Return the folder of a group; the root's where the group cannot be seen."""
        below = os.path.relpath(group, self.above)
        return self.place if below.startswith("..") else self.place / below


def _mounts(root: Path) -> Iterator[_Mount]:
    """Yield what is mounted of the trees that have a controller we want; one more than once, for each of those."""
    for line in (root / "proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        above, place = fields.split()[3:5]
        kind, _, options = rest.split(maxsplit=2)
        folder = root / place.lstrip("/")
        if kind == "cgroup":
            for name in set(options.split(",")) & {*_WANTED, *_OLD_NAMES}:
                yield _Mount(1, name, folder, above, frozenset({_OLD_NAMES.get(name, name)}))
        elif kind == "cgroup2":
            there = frozenset(" ".join(_lines(folder / "cgroup.controllers")).split())
            yield _Mount(2, "", folder, above, there & frozenset(_WANTED))


def _groups_in(told: Path) -> dict[str, str]:
    """Return the groups of a process by each controller of version 1, and by "" for version 2."""
    found: dict[str, str] = {}
    for line in told.read_text().splitlines():
        _, names, group = line.split(":", maxsplit=2)
        found |= dict.fromkeys(names.split(","), group)
    return found


def _outside(folder: Path) -> Path:
    """Return the folder that ours stand in, if this program is in one of ours."""
    inside = [each for each in (folder, *folder.parents) if each.name.startswith(PREFIX)]
    return inside[-1].parent if inside else folder


def _open_up(tree: Tree, top: Path) -> None:
    """In version 2, let groups below be controlled: what is not switched on above cannot be below."""
    if tree.version == 2:
        for folder in (tree.folder, top):
            for name in sorted(tree.controllers):
                _write(folder / "cgroup.subtree_control", f"+{name}")


def _apply(tree: Tree, folder: Path, limits: Limits) -> None:
    for name, value in _settings(tree, limits).items():
        if name.startswith(("io.", "blkio.")) and not (folder / name).exists():
            continue  # whether disks have weights depends on their scheduler
        _write(folder / name, value)


def _settings(tree: Tree, limits: Limits) -> dict[str, object]:
    """Return what is written to which file."""
    names = _names_1(limits) if tree.version == 1 else _names_2(limits)
    return {file: value for controller, file, value in names if controller in tree.controllers and value is not None}


def _names_1(limits: Limits) -> list[tuple[str, str, object]]:
    quota = None if limits.cpus is None else round(limits.cpus * _PERIOD_US)
    return [
        ("cpu", "cpu.shares", max(2, round(limits.cpu_weight * _SHARES_EACH))),
        ("cpu", "cpu.cfs_quota_us", quota),
        ("memory", "memory.limit_in_bytes", limits.memory_bytes),
        ("pids", "pids.max", limits.processes),
        ("io", "blkio.bfq.weight", min(1000, limits.io_weight)),
    ]


def _names_2(limits: Limits) -> list[tuple[str, str, object]]:
    quota = None if limits.cpus is None else f"{round(limits.cpus * _PERIOD_US)} {_PERIOD_US}"
    return [
        ("cpu", "cpu.weight", limits.cpu_weight),
        ("cpu", "cpu.max", quota),
        ("memory", "memory.max", limits.memory_bytes),
        ("pids", "pids.max", limits.processes),
        ("io", "io.weight", f"default {limits.io_weight}"),
    ]


def _write(file: Path, value: object) -> None:
    with file.open("w") as opened:
        opened.write(f"{value}\n")


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def _folders_in(folder: Path) -> list[Path]:
    try:
        return [entry for entry in folder.iterdir() if entry.is_dir()]
    except OSError:
        return []


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
