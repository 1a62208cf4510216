"""What the kernel tells of processes, ours or not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ENDED = {b"Z", b"X"}
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
# Where the fields of /proc/<pid>/stat stand behind the program's name, which may hold anything.
_STATE, _USER_TICKS, _SYSTEM_TICKS, _STARTED = 0, 11, 12, 19


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """By what a process is known for good: its id, which another one gets some day, when it started, and the boot of
    the host in which that was. `started` is in clock ticks since that boot.
    """

    pid: int
    started: int
    boot: str


@cache
def boot_id() -> str:
    """Return what names the time since this host was booted last."""
    return _BOOT_ID.read_text().strip()


def mark_of(pid: int) -> ProcessMark | None:
    """Return the mark of a process; None if it has ended."""
    fields = _stat_of(pid)
    return None if fields is None else ProcessMark(pid, int(fields[_STARTED]), boot_id())


def cpu_seconds(pid: int) -> float | None:
    """Return the processor time that a process has used; None if it has ended."""
    fields = _stat_of(pid)
    return None if fields is None else (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / _TICKS_A_SECOND


def resident_bytes(pid: int) -> int | None:
    """Return how much memory a process holds, its share of what it has in common with others; None if it has ended.

    Where the kernel does not tell the share: what is its own. Walks through all its pages, some milliseconds each GiB.
    """
    kib = _kib_of(pid, "smaps_rollup", b"Pss:")
    if kib is None:
        kib = _kib_of(pid, "status", b"RssAnon:")
    return None if kib is None else kib * 1024


def processes_of(program: str) -> Iterator[int]:
    """Yield the id of every process whose program's name begins so. What its command line says does not count."""
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and _program_of(int(entry.name)).startswith(program):
            yield int(entry.name)


def _program_of(pid: int) -> str:
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name
    except PermissionError:  # it is another user's, or has rights of its own; then the kernel's short name has to do
        return os.fsdecode(_read(f"/proc/{pid}/comm"))
    except OSError:
        return ""


def words_of(pid: int) -> list[str]:
    """Return a process's command line; nothing if it has ended."""
    return os.fsdecode(_read(f"/proc/{pid}/cmdline")).split("\0")


def open_files(pid: int) -> Iterator[str]:
    """Yield the names that the files have now which a process holds open, as far as it lets us look."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for number in numbers:
        with suppress(OSError):  # it is closed by now
            yield os.readlink(f"/proc/{pid}/fd/{number}")


def _stat_of(pid: int) -> list[bytes] | None:
    text = _read(f"/proc/{pid}/stat")
    fields = text.rpartition(b")")[2].split()
    return None if not fields or fields[_STATE] in _ENDED else fields


def _kib_of(pid: int, file: str, name: bytes) -> int | None:
    for line in _read(f"/proc/{pid}/{file}").splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    return None


def _read(path: str) -> bytes:
    """Return what a file of /proc says; nothing if its process has ended, or does not let us look."""
    try:
        return Path(path).read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
