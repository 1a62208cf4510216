"""Starting a QEMU: in its jail, within its limits, which hold before its first instruction."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import secrets
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import structlog

from torpor.kit.cgroups import Group, Groups, Limits
from torpor.kit.proc import Child, Guarded
from torpor.kit.shielded import shielded, wait_ended
from torpor.vmm.qemu.jail import Cell, Jail

_log = structlog.get_logger(__name__)

# Its guest's RAM may be in a dump of its memory, and it has no use for many files, or for another priority.
_RLIMITS = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_NOFILE: 1024,
    resource.RLIMIT_MSGQUEUE: 0,
    resource.RLIMIT_NICE: 0,
    resource.RLIMIT_RTPRIO: 0,
}
# Threads count. What the kernel counts without a control group is all that a user has.
PROCESSES = 512
_PIECE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Order:
    """A QEMU to be started: its command line and what it inherits, its cell if there is a jail, a name for its group,
    and what that may have.
    """

    argv: Sequence[str]
    passed: Sequence[int]
    cell: Cell
    name: str
    limits: Limits


async def launch(
    order: Order, output: int, jail: Jail | None, groups: Groups | None
) -> tuple[Child | Guarded, Group | None]:
    """Start a QEMU, which says what it says to the descriptor `output`. Return it with its control group.

    If it cannot even be put into its jail, what is returned has ended, or is about to. Raises OSError, and then nothing
    is left.
    """
    group = None if groups is None else groups.make(f"{order.name}-{secrets.token_hex(4)}", order.limits)
    try:
        if jail is None:
            return await _start(order, output, group), group
        return await _start_inside(order, output, jail, group), group
    except BaseException:
        if group is not None:
            await shielded(group.remove())
        raise


async def _start(order: Order, output: int, group: Group | None) -> Child:
    child = Child(order.argv, pass_fds=order.passed, output=output, lasting=order.cell.lasting)
    try:
        with suppress(ProcessLookupError):  # it has ended by itself, and tells how
            _limit(child.pid, order.cell, group)
    except BaseException:
        await child.kill()
        raise
    return child


async def _start_inside(order: Order, output: int, jail: Jail, group: Group | None) -> Child | Guarded:
    """Have the cell made, limit who is in it, and let it begin."""
    with ExitStack() as ours:
        with ExitStack() as theirs:
            hearing, told = _pipe(ours, theirs)
            held, letting = _pipe(theirs, ours)
            argv = jail.argv(order.cell, order.argv, told=told, held=held)
            passed = [*order.passed, told, held]
            guard = Child(argv, pass_fds=passed, output=output, lasting=order.cell.lasting)
        process = await _guarded(guard, hearing)
        if isinstance(process, Guarded):
            try:
                with suppress(ProcessLookupError, BrokenPipeError):  # its cell was not made, and it has ended
                    if group is not None:
                        group.add(guard.pid)
                    _limit(process.pid, order.cell, group)
                    os.write(letting, b"!")
            except BaseException:
                await process.kill()
                raise
        return process


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """Make a pipe, and return its end to read from and its end to write to, which are closed here by these stacks."""
    ends = os.pipe2(os.O_CLOEXEC)
    for end, stack in zip(ends, (reader, writer), strict=True):
        stack.callback(os.close, end)
    return ends


async def _guarded(guard: Child, hearing: int) -> Child | Guarded:
    """Return the process that a guard tells of; the guard itself, ended, if it told of none. If this is cut short, both
    are ended.
    """
    reading = asyncio.create_task(_read_pid(hearing))
    try:
        await wait_ended(reading)
    except BaseException:
        await _inside(guard, reading.result()).kill()
        raise
    process = _inside(guard, reading.result())
    if process is guard:
        await guard.kill()
    return process


def _inside(guard: Child, pid: int | None) -> Child | Guarded:
    try:
        return guard if pid is None else Guarded(guard, pid)
    except ProcessLookupError:  # it has ended already, and its guard tells how
        return guard


async def _read_pid(hearing: int) -> int | None:
    """Return the process that a guard tells of; None if it ends before it does."""
    loop, said = asyncio.get_running_loop(), bytearray()
    whole: asyncio.Future[None] = loop.create_future()

    def hear() -> None:
        piece = os.read(hearing, _PIECE_BYTES)
        said.extend(piece)
        if (not piece or b"}" in piece) and not whole.done():
            whole.set_result(None)

    loop.add_reader(hearing, hear)
    try:
        await whole
    finally:
        loop.remove_reader(hearing)
    return int(json.loads(said)["child-pid"]) if b"}" in said else None


def _limit(pid: int, cell: Cell, group: Group | None) -> None:
    """Hold a process within its limits. Raises OSError, ProcessLookupError if it has ended."""
    if group is not None:
        group.add(pid)
    if os.getpriority(os.PRIO_PROCESS, pid) < 0:  # what a server has that comes before its machines
        os.setpriority(os.PRIO_PROCESS, pid, 0)
    for what, most in _RLIMITS.items():
        resource.prlimit(pid, what, (most, most))
    if cell.user is not None:
        resource.prlimit(pid, resource.RLIMIT_NPROC, (PROCESSES, PROCESSES))
