"""The keeper, for real, on processes that look like machines to it."""

from __future__ import annotations

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

from torpor.host import keeper
from torpor.host.keeping import keeping
from torpor.host.lock import alive
from torpor.kit.procfs import mark_of
from torpor.storage.layout import Layout
from torpor.vmm.qemu.survivors import QemuSurvivors

PATIENCE_S = 30.0
SANDBOX = "sbx-0123456789bcdfgh"
# Looks like a machine by its command line, tells when it runs, and does until it is killed.
STAND_IN = "import os, signal; os.close(1); signal.pause()"


class StandIn:
    """A process that looks like a machine which was started in a place of a data directory."""

    def __init__(self, layout: Layout, place: str = "spare-1") -> None:
        argv = [sys.executable, "-c", STAND_IN, "qemu-system-x86_64", f"{layout.sandboxes}/{place}/disk.qcow2"]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.read()  # ends when it runs
        self.process.stdout.close()

    def put_on_record(self, layout: Layout, deadline: float | None = None, sandbox: str = SANDBOX) -> None:
        """Let it be the machine of a sandbox."""
        folder = layout.sandboxes / sandbox
        folder.mkdir(exist_ok=True)
        mark = mark_of(self.process.pid)
        assert mark is not None
        (folder / "machine.json").write_text(json.dumps({"pid": mark.pid, "started": mark.started}))
        if deadline is not None:
            (folder / "deadline").write_text(f"{deadline}\n")

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)


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
    machine = StandIn(layout, place)
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
    machine.put_on_record(layout, time.time() - 11)
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
    (layout.sandboxes / SANDBOX / "machine.json").write_text(json.dumps({"pid": machine.process.pid, "started": 1}))
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


async def test_without_machines_the_keeper_goes_with_its_server(layout: Layout) -> None:
    with alive(layout.alive):
        async with keeping(layout, QemuSurvivors()):
            assert holds_soon(lambda: layout.keeper.read_text() != "")
            pid = int(layout.keeper.read_text())
    assert mark_of(pid) is None


def test_the_keeper_needs_nothing_but_the_standard_library_and_ends_where_there_is_nobody(layout: Layout) -> None:
    argv = [sys.executable, "-I", "-S", keeper.__file__, str(layout.sandboxes), str(layout.alive), str(layout.keeper)]
    assert subprocess.run(argv, check=False, capture_output=True, timeout=PATIENCE_S).returncode == 0
