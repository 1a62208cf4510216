"""The interpreter's process: how it is forked from the supervisor, with descriptors of its own."""

from __future__ import annotations

import fcntl
import io
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import NamedTuple

from torpor_kernel.interpreter import Interpreter

# Our own descriptors have numbers from here on.
_OUT_OF_THE_WAY = 200


class Child(NamedTuple):
    """The interpreter's process, as it is reached from outside."""

    pid: int
    stdout: int
    stderr: int
    line: socket.socket


def out_of_the_way(fd: int) -> int:
    """Return a copy of a descriptor under a number that nobody stumbles over, and that no other program gets."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)


def fork(others: tuple[int, ...], path: list[str]) -> Child:
    """Fork the interpreter. It closes the descriptors `others`, and its path for modules begins with `path`."""
    (out, to_out), (err, to_err) = os.pipe(), os.pipe()
    here, there = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.setpgid(0, 0)
        line = socket.socket(fileno=out_of_the_way(there.detach()))
        for fd, number in ((os.open(os.devnull, os.O_RDWR), 0), (to_out, 1), (to_err, 2)):
            os.dup2(fd, number)
        for fd in others:
            os.close(fd)
        os.closerange(3, _OUT_OF_THE_WAY)
        _become_interpreter(line, path)
    with suppress(ProcessLookupError, PermissionError):  # it is gone, or has done so itself
        os.setpgid(pid, pid)
    for fd in (to_out, to_err, there.detach()):
        os.close(fd)
    return Child(pid, out, err, here)


def _become_interpreter(line: socket.socket, path: list[str]) -> None:
    sys.stdout = _written(1)
    sys.stderr = _written(2)
    sys.path[:0] = path
    sys.argv = [""]
    code = 1
    try:
        Interpreter(line).serve()
        code = 0
    finally:
        os._exit(code)


def _written(fd: int) -> io.TextIOWrapper:
    return open(fd, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)


def kill_group(leader: int, number: int) -> None:
    """Send a signal to a process group, if there still is one."""
    with suppress(ProcessLookupError):
        os.killpg(leader, number)
