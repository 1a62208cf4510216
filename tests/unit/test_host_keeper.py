"""The keeper, for real, on processes that look like machines to it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from stand_in import PATIENCE_S, SANDBOX, StandIn, machine_in
from torpor.host import keeper
from torpor.host.keeping import keeping
from torpor.host.lock import alive
from torpor.kit.procfs import mark_of
from torpor.storage.layout import Layout
from torpor.vmm.qemu.survivors import QemuSurvivors


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path / "home")
    layout.make()
    return layout


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as undo:
        yield undo


def a_machine(undo: ExitStack, layout: Layout, place: str = "spare-1") -> StandIn:
    machine = machine_in(layout, place)
    undo.callback(machine.end)
    return machine


def start(layout: Layout) -> subprocess.Popen[bytes]:
    argv = [str(layout.sandboxes), str(layout.alive), str(layout.keeper)]
    return subprocess.Popen([sys.executable, "-I", "-S", keeper.__file__, *argv])


@contextmanager
def running_keeper(layout: Layout) -> Iterator[subprocess.Popen[bytes]]:
    process = start(layout)
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def holds_soon(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_a_machine_whose_deadline_passes_while_no_server_lives_is_ended_and_so_is_the_keeper(
    layout: Layout, undo: ExitStack
) -> None:
    due, other = a_machine(undo, layout), a_machine(undo, layout)
    due.put_on_record(layout, time.time() + 1)
    other.put_on_record(layout, time.time() + 3600, "sbx-1123456789bcdfgh")
    with running_keeper(layout) as process:
        assert due.process.wait(PATIENCE_S) == -signal.SIGKILL
        assert other.lives
        assert process.poll() is None
        other.end()
        assert process.wait(PATIENCE_S) == 0


def test_a_machine_without_a_deadline_lives_as_long_as_it_likes(layout: Layout, undo: ExitStack) -> None:
    machine, nobodys = a_machine(undo, layout), a_machine(undo, layout)
    machine.put_on_record(layout)
    with running_keeper(layout):
        assert nobodys.process.wait(PATIENCE_S) == -signal.SIGKILL
        assert machine.lives


def test_what_is_nobody_s_is_left_to_a_server_that_lives_and_ended_when_it_does_not(
    layout: Layout, undo: ExitStack
) -> None:
    machine = a_machine(undo, layout)
    with ExitStack() as server:
        server.enter_context(alive(layout.alive))
        assert keeper.look(str(layout.sandboxes), server=keeper.server_lives(str(layout.alive)))
        assert machine.lives
    assert keeper.look(str(layout.sandboxes), server=keeper.server_lives(str(layout.alive)))
    assert machine.process.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_server_that_lives_has_some_time_to_end_a_sandbox_itself(layout: Layout, undo: ExitStack) -> None:
    machine = a_machine(undo, layout)
    machine.put_on_record(layout, time.time() - 1)
    keeper.look(str(layout.sandboxes), server=True)
    assert machine.lives
    machine.put_on_record(layout, time.time() - 290)
    keeper.look(str(layout.sandboxes), server=True)
    assert machine.lives, "it may have been told of a longer life, and not have been able to note it"
    machine.put_on_record(layout, time.time() - 301)
    keeper.look(str(layout.sandboxes), server=True)
    assert machine.process.wait(PATIENCE_S) == -signal.SIGKILL


@pytest.mark.parametrize("said", ["nan", "soon", "", "\0"])
def test_a_deadline_that_says_nothing_is_none(layout: Layout, undo: ExitStack, said: str) -> None:
    machine = a_machine(undo, layout)
    machine.put_on_record(layout)
    (layout.sandboxes / SANDBOX / "deadline").write_text(said)
    keeper.look(str(layout.sandboxes), server=False)
    assert machine.lives


def test_a_record_of_another_process_of_that_number_protects_nobody(layout: Layout, undo: ExitStack) -> None:
    machine = a_machine(undo, layout)
    machine.put_on_record(layout)
    record = layout.sandboxes / SANDBOX / "machine.json"
    noted = json.loads(record.read_text())
    record.write_text(json.dumps(noted | {"started": 1}))
    keeper.look(str(layout.sandboxes), server=False)
    assert machine.process.wait(PATIENCE_S) == -signal.SIGKILL


def test_what_was_noted_before_the_host_was_booted_protects_nobody(layout: Layout, undo: ExitStack) -> None:
    machine = a_machine(undo, layout)
    machine.put_on_record(layout)
    record = layout.sandboxes / SANDBOX / "machine.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"boot": "another"}))
    keeper.look(str(layout.sandboxes), server=False)
    assert machine.process.wait(PATIENCE_S) == -signal.SIGKILL


@pytest.mark.parametrize("unreadable", ["a folder", "another version's"])
def test_where_a_record_cannot_be_read_nobody_s_machine_may_be_its_own_and_is_left_alone(
    layout: Layout, undo: ExitStack, unreadable: str
) -> None:
    unknown, due = a_machine(undo, layout), a_machine(undo, layout)
    due.put_on_record(layout, time.time() - 1)
    record = layout.sandboxes / "sbx-1123456789bcdfgh" / "machine.json"
    record.parent.mkdir()
    if unreadable == "a folder":
        record.mkdir()  # to read it is an input or output error
    else:
        record.write_text('{"format": 7}')
    assert keeper.look(str(layout.sandboxes), server=False)
    assert unknown.lives
    assert due.process.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_program_that_only_speaks_of_machines_is_none(layout: Layout, undo: ExitStack) -> None:
    words = ("qemu-system-x86_64", f"{layout.sandboxes}/{SANDBOX}/vmm.log")
    admin = StandIn(layout.home.parent, *words, name="grep")
    undo.callback(admin.end)
    assert not keeper.look(str(layout.sandboxes), server=False)
    assert QemuSurvivors().below(layout.sandboxes) == []
    assert admin.lives


@pytest.mark.parametrize("home", ["home", "a,b", "K\u00fche"])
def test_a_machine_is_found_by_what_it_has_open_however_it_spells_its_words(
    tmp_path: Path, undo: ExitStack, home: str
) -> None:
    before, layout = Layout(tmp_path / "before"), Layout(tmp_path / home)
    before.make()
    (before.sandboxes / SANDBOX).mkdir()
    disk = before.sandboxes / SANDBOX / "disk.qcow2"
    machine = StandIn(tmp_path, str(disk).replace(",", ",,"), opens=[disk])
    undo.callback(machine.end)
    before.home.rename(layout.home)
    (mark,) = QemuSurvivors().below(layout.sandboxes)
    assert mark.pid == machine.process.pid
    assert keeper.machines_of(str(layout.sandboxes)) == [(mark.pid, mark.started)]
    assert keeper.machines_of(str(before.sandboxes)) == [(mark.pid, mark.started)], "by its words"


def test_a_machine_on_record_is_one_whatever_the_process_table_shows(layout: Layout, undo: ExitStack) -> None:
    machine = StandIn(layout.home.parent, name="emulator")
    undo.callback(machine.end)
    machine.put_on_record(layout, time.time() + 3600)
    assert keeper.look(str(layout.sandboxes), server=False)
    assert machine.lives
    machine.put_on_record(layout, time.time() - 1)
    keeper.look(str(layout.sandboxes), server=False)
    assert machine.process.wait(PATIENCE_S) == -signal.SIGKILL


def test_nothing_is_ended_where_the_folders_cannot_be_read(layout: Layout, undo: ExitStack) -> None:
    machine = a_machine(undo, layout)
    layout.sandboxes.rename(layout.home / "elsewhere")
    assert keeper.look(str(layout.sandboxes), server=False)
    assert machine.lives


def test_machines_of_another_data_directory_are_not_touched(layout: Layout, tmp_path: Path, undo: ExitStack) -> None:
    other = Layout(tmp_path / "other")
    other.make()
    theirs = a_machine(undo, other)
    assert not keeper.look(str(layout.sandboxes), server=False)
    assert theirs.lives


def test_there_is_one_keeper_for_a_data_directory(layout: Layout, undo: ExitStack) -> None:
    machine = a_machine(undo, layout)
    machine.put_on_record(layout)
    with running_keeper(layout) as first:
        assert holds_soon(lambda: layout.keeper.exists() and layout.keeper.read_text().strip() == str(first.pid))
        with running_keeper(layout) as second:
            assert second.wait(PATIENCE_S) == 0
        assert first.poll() is None


def code_of(child: int) -> int:
    """Wait for a child whose parent has left it, and return its exit code."""
    ended = os.pidfd_open(child)
    assert select.select([ended], [], [], PATIENCE_S)[0]
    os.close(ended)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def test_a_server_replaces_an_earlier_keeper_and_leaves_its_own_to_look_after_what_lives(
    layout: Layout, undo: ExitStack
) -> None:
    machine = a_machine(undo, layout)
    machine.put_on_record(layout)
    with running_keeper(layout) as earlier:
        assert holds_soon(lambda: layout.keeper.exists() and layout.keeper.read_text() != "")
        with alive(layout.alive):
            async with keeping(layout, QemuSurvivors()):
                assert earlier.wait(PATIENCE_S) == -signal.SIGKILL
                assert holds_soon(lambda: layout.keeper.read_text().strip() not in ("", str(earlier.pid)))
        left = int(layout.keeper.read_text())
        assert mark_of(left) is not None
        assert os.getsid(left) == left
    machine.end()
    assert code_of(left) == 0


async def test_a_keeper_that_is_gone_when_its_server_ends_is_replaced_if_there_are_machines(
    layout: Layout, undo: ExitStack
) -> None:
    machine = a_machine(undo, layout)
    machine.put_on_record(layout)
    with alive(layout.alive):
        async with keeping(layout, QemuSurvivors()):
            assert holds_soon(lambda: layout.keeper.read_text() != "")
            gone = int(layout.keeper.read_text())
            ended = os.pidfd_open(gone)
            os.kill(gone, signal.SIGKILL)
            assert (await asyncio.to_thread(select.select, [ended], [], [], PATIENCE_S))[0]
            os.close(ended)
    assert holds_soon(lambda: layout.keeper.read_text().strip() not in ("", str(gone)))
    left = int(layout.keeper.read_text())
    assert mark_of(left) is not None
    machine.end()
    assert code_of(left) == 0


async def test_an_earlier_keeper_is_found_though_the_data_directory_was_moved(
    layout: Layout, tmp_path: Path, undo: ExitStack
) -> None:
    machine = a_machine(undo, layout)
    machine.put_on_record(layout)
    with running_keeper(layout) as earlier:
        assert holds_soon(lambda: layout.keeper.exists() and layout.keeper.read_text() != "")
        layout.home.rename(tmp_path / "elsewhere")
        moved = Layout(tmp_path / "elsewhere")
        with alive(moved.alive):
            async with keeping(moved, QemuSurvivors()):
                assert earlier.wait(PATIENCE_S) == -signal.SIGKILL
                machine.end()


async def test_a_keeper_of_another_data_directory_whose_id_is_told_by_mistake_is_left_alone(
    layout: Layout, tmp_path: Path, undo: ExitStack
) -> None:
    other = Layout(tmp_path / "other")
    other.make()
    a_machine(undo, other).put_on_record(other)
    with running_keeper(other) as theirs, layout.keeper.open("w") as lock:
        assert holds_soon(lambda: other.keeper.exists() and other.keeper.read_text() != "")
        fcntl.flock(lock, fcntl.LOCK_EX)  # a new keeper, which has not told its own id yet
        lock.write(f"{theirs.pid}\n")
        lock.flush()
        waiting = asyncio.create_task(_kept_once(layout))
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done
        assert theirs.poll() is None
        fcntl.flock(lock, fcntl.LOCK_UN)
        await waiting
        assert theirs.poll() is None


async def _kept_once(layout: Layout) -> None:
    with alive(layout.alive):
        async with keeping(layout, QemuSurvivors()):
            pass


async def test_without_machines_the_keeper_goes_with_its_server(layout: Layout) -> None:
    with alive(layout.alive):
        async with keeping(layout, QemuSurvivors()):
            assert holds_soon(lambda: layout.keeper.read_text() != "")
            pid = int(layout.keeper.read_text())
    assert mark_of(pid) is None


def test_the_keeper_needs_nothing_but_the_standard_library_and_ends_where_there_is_nobody(layout: Layout) -> None:
    argv = [sys.executable, "-I", "-S", keeper.__file__, str(layout.sandboxes), str(layout.alive), str(layout.keeper)]
    assert subprocess.run(argv, check=False, capture_output=True, timeout=PATIENCE_S).returncode == 0
