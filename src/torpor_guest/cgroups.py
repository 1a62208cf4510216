"""One control group for each command, so that all of it can be killed, frozen and watched, however it forked.

<root>/user/            everything of the user's; this is what a freeze of the guest stops, and what leaves the agent
                        its part of memory, processes and processor
<root>/user/exec-<n>/   one command and what it left behind; removed when it is empty
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress

from torpor_guest.loop import PRIORITY, Loop

# Made ahead, because making one costs more than starting a process in it.
_SPARE = 2
_PREFIX = "exec-"
_CONTROLLERS = ("memory", "pids", "cpu")
# What the user's processes together leave to the agent and the kernel: an eighth of the memory that is available when
# nothing of theirs runs, but within these bounds in bytes, and an eighth of the processes. Who asks for more is
# refused, or killed for it. With less left the kernel takes the agent's own code out of memory before it kills anybody,
# and reads it again for each step, for minutes.
_LEAST_LEFT, _MOST_LEFT = 32 * 1024**2, 64 * 1024**2
# A process outside of the user's group weighs 100. So the agent has its turn at once, however many compute.
_USERS_WEIGHT = 20


class Cgroup:
    """The control group of one command, made when this is. What a command waits for is opened ahead."""

    def __init__(self, path: str) -> None:
        os.mkdir(path)
        self.path = path
        self.procs = os.open(f"{path}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        try:
            self._memory_events = os.open(f"{path}/memory.events", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # no memory controller here
            self._memory_events = -1

    def kill(self) -> None:
        """Kill every process in it; none can escape, whatever sessions and groups they made.

        Only root can lead processes out of it, and may then remove it: nothing is left to kill in it then.
        """
        with suppress(FileNotFoundError):
            _write(f"{self.path}/cgroup.kill", b"1")

    def oom_killed(self) -> bool:
        """Tell whether the kernel killed a process of it for lack of memory. Of a removed group nothing is known."""
        return self._memory_events >= 0 and _field(_reread(self._memory_events), b"oom_kill") > 0

    def close(self) -> None:
        """Close what was opened ahead; the group itself stays."""
        os.close(self.procs)
        if self._memory_events >= 0:
            os.close(self._memory_events)

    def remove_when_empty(self, loop: Loop) -> None:
        """Close it, and remove it now or as soon as its last process has ended."""
        self.close()
        if self._removed():
            return
        try:
            fd = os.open(f"{self.path}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return

        def look(_: int) -> None:
            # Reading it is what makes the kernel tell of the next change.
            if _field(_reread(fd), b"populated"):
                return
            loop.unwatch(fd)
            os.close(fd)
            _remove_tree(self.path)

        loop.watch(fd, PRIORITY, look)
        look(0)

    def _removed(self) -> bool:
        try:
            os.rmdir(self.path)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            raise
        return True


class CgroupTree:
    """The groups below `root`, a folder of a cgroup v2 file system that belongs to the agent.

    Raises OSError if it is none.
    """

    def __init__(self, root: str) -> None:
        self.user = f"{root}/user"
        os.stat(f"{root}/cgroup.procs")
        os.makedirs(self.user, exist_ok=True)
        for folder in (root, self.user):
            self._enable(folder)
        # Where the agent itself lives, to go back to after it has started a process in another group.
        self._home = os.open(f"{_own_group()}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        self._count = 0
        self._freezing = False
        self._most_processes = 0
        self._limit(_read(f"{root}/cgroup.subtree_control").decode().split())
        self._ready: list[Cgroup] = []
        self.prepare()

    @staticmethod
    def _enable(folder: str) -> None:
        available = _read(f"{folder}/cgroup.controllers").decode().split()
        for name in _CONTROLLERS:
            if name in available:
                _write(f"{folder}/cgroup.subtree_control", f"+{name}".encode())

    def _limit(self, controllers: list[str]) -> None:
        """Keep all of the user's together from taking what the agent needs; by the controllers there are."""
        if "pids" in controllers:
            threads = int(_read("/proc/sys/kernel/threads-max"))
            _write(f"{self.user}/pids.max", str(threads - threads // 8).encode())
            self._most_processes = threads // 2
        if "memory" in controllers:
            _write(f"{self.user}/memory.max", str(_users_memory(_available_bytes())).encode())
        if "cpu" in controllers:
            _write(f"{self.user}/cpu.weight", str(_USERS_WEIGHT).encode())

    def prepare(self) -> None:
        """Make groups ahead; for when there is nothing more urgent."""
        while len(self._ready) < _SPARE:
            self._ready.append(self._make())

    def take(self) -> Cgroup:
        """Return a group for one command."""
        return self._ready.pop() if self._ready else self._make()

    def give_back(self, group: Cgroup) -> None:
        """Take a group back in which nothing was started, unless root has removed it."""
        if os.path.isdir(group.path):
            self._ready.append(group)
        else:
            group.close()

    def _make(self) -> Cgroup:
        self._count += 1
        group = Cgroup(f"{self.user}/{_PREFIX}{self._count}")
        if self._most_processes:
            # One command may fork until nothing is left for it, and there is still room for another.
            _write(f"{group.path}/pids.max", str(self._most_processes).encode())
        return group

    def start_in(self, group: Cgroup, start: Callable[[], int]) -> int:
        """Call `start` while this process is in `group`, so that the child it makes is born there, and return what
        it returns.
        """
        os.write(group.procs, b"0")
        try:
            return start()
        finally:
            os.write(self._home, b"0")

    def freezing(self) -> bool:
        """Tell whether everything of the user's is stopped or about to."""
        # Remembered, and so saved and restored with the memory: the kernel's own answer would cost every create and
        # exec.
        return self._freezing

    def freeze(self) -> None:
        """Begin to stop everything of the user's."""
        self._freezing = True
        _write(f"{self.user}/cgroup.freeze", b"1")

    def thaw(self) -> None:
        """Let everything of the user's go on."""
        _write(f"{self.user}/cgroup.freeze", b"0")
        self._freezing = False

    def close(self) -> None:
        """Kill everything of the user's and remove the groups. For an agent that is not a guest's first process."""
        _write(f"{self.user}/cgroup.kill", b"1")
        with suppress(ChildProcessError):
            while True:
                os.wait()
        for name in os.listdir(self.user):
            if name.startswith(_PREFIX):
                _remove_tree(f"{self.user}/{name}")
        os.rmdir(self.user)


def _users_memory(available: int) -> int:
    """Return how much of the memory that is available its user's processes may have together, in bytes."""
    return max(available // 2, available - min(max(available // 8, _LEAST_LEFT), _MOST_LEFT))


def _available_bytes() -> int:
    """Return how much memory there is for processes that are yet to start, in bytes."""
    words = _read("/proc/meminfo").split()
    return int(words[words.index(b"MemAvailable:") + 1]) * 1024


def _remove_tree(path: str) -> None:
    """Remove an empty group, and the groups that the user may have made below it."""
    with suppress(FileNotFoundError):
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                _remove_tree(entry.path)
        os.rmdir(path)


def _own_group() -> str:
    """Return the folder of the cgroup v2 group that this process is in."""
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        inner = next(line[3:].rstrip("\n") for line in file if line.startswith("0::"))
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        mounts = [line.split() for line in file]
    mount = next(fields[4] for fields in mounts if fields[fields.index("-") + 1] == "cgroup2")
    return mount + inner.rstrip("/")


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _reread(fd: int) -> bytes:
    """Read a group's file from its beginning; empty if root has removed the group."""
    try:
        return os.pread(fd, 256, 0)
    except OSError as error:
        if error.errno == errno.ENODEV:
            return b""
        raise


def _field(text: bytes, name: bytes) -> int:
    words = text.split()
    return int(words[words.index(name) + 1]) if name in words else 0
