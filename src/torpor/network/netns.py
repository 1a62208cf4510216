"""Network namespaces: the only file that enters one."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from torpor.errors import Failed

_T = TypeVar("_T")
# Where `ip netns` keeps them.
FOLDER = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def within(name: str, work: Callable[[], _T]) -> _T:
    """Do some work within a namespace, and return what it returns. What it opens, or starts, is of that namespace.

    A thread of its own does it and ends with it, for only a thread can be in another namespace, and none of ours is to
    be left there. Blocks. Raises Failed if there is no such namespace, and what the work raises.
    """
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            _enter(name)
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name=f"within {name}")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _enter(name: str) -> None:
    try:
        descriptor = os.open(FOLDER / name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise Failed(f"there is no network namespace {name}: {error.strerror}") from error
    try:
        if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise Failed(f"the network namespace {name} cannot be entered: {os.strerror(number)}")
    finally:
        os.close(descriptor)


def names(beginning: str) -> list[str]:
    """Return the namespaces whose names begin so."""
    try:
        return sorted(entry.name for entry in FOLDER.iterdir() if entry.name.startswith(beginning))
    except FileNotFoundError:
        return []
