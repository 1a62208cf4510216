"""Starting a process in a jail and within limits: all of them hold, and whatever fails, nothing is left."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from torpor.kit.cgroups import PREFIX, Groups, Limits, group_of, trees_here
from torpor.kit.procfs import mark_of
from torpor.vmm.qemu.jail import Cell, Jail, build, within
from torpor.vmm.qemu.launch import PROCESSES, Order, launch

BASE = 1_700_000_000
PROGRAM = "sleep"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives machines users of their own")


@pytest.fixture
async def jail(tmp_path: Path) -> Jail:
    walls = await build(PROGRAM, tmp_path / "jail", BASE)
    assert walls.jail is not None
    return walls.jail


@pytest.fixture
async def groups() -> AsyncIterator[Groups]:
    groups = Groups(f"{PREFIX}test-{secrets.token_hex(4)}", tuple(trees_here()))
    yield groups
    assert [top for top in groups.tops if top.exists()] == []


def order(jail: Jail | None, *, lasting: bool = True, words: tuple[str, ...] = ("1000",)) -> Order:
    program = PROGRAM if jail is None else within(PROGRAM)
    user = None if jail is None else jail.user()
    return Order([program, *words], (), Cell(user, (), lasting), "place", Limits(cpus=1.5, processes=PROCESSES))


def processes_of_user(user: int | None) -> list[int]:
    found = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdecimal()]
    return [pid for pid in found if owner_of(pid) == user]


def owner_of(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        return None


def program_of(pid: int) -> str:
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name
    except FileNotFoundError:
        return ""


def limits_of(pid: int) -> dict[str, str]:
    told = Path(f"/proc/{pid}/limits").read_text()
    return {line[:26].strip(): line[26:].split()[0] for line in told.splitlines()}


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def output() -> Iterator[int]:
    descriptor = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    yield descriptor
    os.close(descriptor)


async def test_limits_hold_from_the_first_instruction_on(jail: Jail, groups: Groups, output: int) -> None:
    what = order(jail)
    process, group = await launch(what, output, jail, groups)
    try:
        limits = limits_of(process.pid)
        assert (limits["Max core file size"], limits["Max open files"]) == ("0", "1024")
        assert limits["Max processes"] == str(PROCESSES)
        assert group is not None
        assert group_of(process.pid) == group
    finally:
        await process.kill()
        assert group is not None
        assert await group.remove()
    assert process.code == -signal.SIGKILL


async def test_what_cannot_be_put_into_the_jail_is_told_by_its_end(jail: Jail, groups: Groups, output: int) -> None:
    nowhere = Jail(jail.tree / "nowhere", BASE)
    process, group = await launch(order(nowhere), output, nowhere, groups)
    await process.gone.wait()
    assert process.code == 1
    assert group is not None
    assert await group.remove()


async def test_a_launch_that_is_cut_short_leaves_nothing(jail: Jail, groups: Groups, output: int) -> None:
    cut_short = 0
    for turns in range(40):
        what = order(jail)
        launching = asyncio.create_task(launch(what, output, jail, groups))
        for _ in range(turns):
            await asyncio.sleep(0)
        launching.cancel()
        try:
            process, group = await launching
        except asyncio.CancelledError:
            cut_short += 1
        else:
            await process.kill()
            assert group is not None
            assert await group.remove()
        assert processes_of_user(what.cell.user) == []

    assert cut_short > 5


async def test_without_a_group_of_its_own_there_is_nothing_to_remove(jail: Jail, output: int) -> None:
    process, group = await launch(order(jail), output, jail, None)
    assert group is None
    await process.kill()


async def test_one_that_does_not_last_ends_with_its_guard(jail: Jail, output: int) -> None:
    what = order(jail, lasting=False)
    process, _ = await launch(what, output, jail, None)
    guard = mark_of(parent_of(process.pid))
    assert guard is not None
    while not any(program_of(pid) == PROGRAM for pid in processes_of_user(what.cell.user)):
        os.sched_yield()  # until it runs
    os.kill(guard.pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        await process.gone.wait()
    assert processes_of_user(what.cell.user) == []


async def test_one_that_lasts_outlives_its_guard_and_leaves_nothing_when_it_ends(jail: Jail, output: int) -> None:
    what = order(jail)
    process, _ = await launch(what, output, jail, None)
    os.kill(parent_of(process.pid), signal.SIGKILL)
    assert mark_of(process.pid) is not None
    await process.kill()
    assert processes_of_user(what.cell.user) == []


async def test_without_a_jail_limits_hold_all_the_same(groups: Groups, output: int) -> None:
    process, group = await launch(order(None), output, None, groups)
    try:
        assert limits_of(process.pid)["Max core file size"] == "0"
        assert group is not None
        assert group_of(process.pid) == group
    finally:
        await process.kill()
        assert group is not None
        assert await group.remove()
