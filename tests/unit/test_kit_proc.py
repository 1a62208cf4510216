from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from torpor.kit.proc import Child, Guarded, Orphan, ProgramFailed, ProgramMissing, run
from torpor.kit.procfs import cpu_seconds, mark_of, resident_bytes
from torpor.kit.sockets import connect_to, listen_at


async def test_a_program_run_to_its_end_gives_its_output_and_logs_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert await run(["sh", "-c", "echo out; echo err >&2"], log=log) == "out\nerr\n"
    assert "out\nerr\n" in log.read_text()


async def test_a_program_that_fails_is_reported_with_its_words_and_code() -> None:
    with pytest.raises(ProgramFailed, match="ended with code 3: broken") as caught:
        await run(["sh", "-c", "echo broken; exit 3"])
    assert caught.value.code == 3


async def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(ProgramMissing, match="no-such-program"):
        await run(["no-such-program"])


async def test_a_cancelled_run_leaves_no_process(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    running = asyncio.ensure_future(run(["sh", "-c", 'echo $$ > "$1"; exec sleep 1000', "x", str(pipe)]))
    pid = int(await asyncio.to_thread(pipe.read_text))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not Path(f"/proc/{pid}").exists()


async def test_the_log_has_what_is_said_while_a_program_still_runs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    os.mkfifo(log)

    def first_lines() -> list[str]:
        with log.open() as file:
            return [file.readline(), file.readline()]

    reading = asyncio.create_task(asyncio.to_thread(first_lines))
    running = asyncio.create_task(run(["sh", "-c", "echo begun; exec sleep 1000"], log=log))
    assert await reading == ["$ sh -c echo begun; exec sleep 1000\n", "begun\n"]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_of_much_output_the_newest_part_is_returned_and_all_of_it_logged(tmp_path: Path) -> None:
    log = tmp_path / "log"
    said = await run(["sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' x; echo the end"], log=log)
    assert said.endswith("xthe end\n")
    assert len(said) == 4 * 1024 * 1024
    assert log.stat().st_size > 5_000_000


async def test_a_child_tells_its_end_and_its_code() -> None:
    child = Child(["sh", "-c", "exit 7"])
    await child.gone.wait()
    assert child.code == 7
    child.signal(signal.SIGTERM)  # to one that has ended: nothing happens
    await child.kill()


async def test_a_killed_child_is_gone_when_kill_returns() -> None:
    child = Child(["sleep", "1000"])
    await child.kill()
    assert child.code == -signal.SIGKILL
    assert not Path(f"/proc/{child.pid}").exists()


async def test_a_child_s_words_go_to_its_file(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        child = Child(["sh", "-c", "echo hello; echo world >&2"], output=log.fileno())
    await child.gone.wait()
    assert (tmp_path / "log").read_text() == "hello\nworld\n"


def test_a_child_does_not_outlive_its_owner() -> None:
    script = """
import asyncio, os, signal
from torpor.kit.proc import Child
async def main():
    child = Child(["sh", "-c", "echo $$; exec sleep 1000"])
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    owner = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert owner.returncode == -signal.SIGKILL, owner.stderr
    pid = int(owner.stdout)
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([process], [], [], 10)[0], "the child outlived its owner"
    os.close(process)


LEAVES_A_CHILD = """
import asyncio, os, signal
from torpor.kit.proc import Child
async def main():
    child = Child(["sleep", "1000"], lasting=True)
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


async def test_a_lasting_child_outlives_its_owner_and_is_found_by_its_mark() -> None:
    owner = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", LEAVES_A_CHILD], capture_output=True, text=True, check=False
    )
    assert owner.returncode == -signal.SIGKILL, owner.stderr
    mark = mark_of(int(owner.stdout))
    assert mark is not None
    orphan = Orphan(mark)
    assert not orphan.gone.is_set()
    await orphan.kill()
    await orphan.kill()
    assert (orphan.gone.is_set(), orphan.code) == (True, None)
    assert mark_of(mark.pid) is None
    with pytest.raises(ProcessLookupError):
        Orphan(mark)


async def test_another_process_of_that_number_is_not_taken_for_it() -> None:
    child = Child(["sleep", "1000"])
    mark = mark_of(child.pid)
    assert mark is not None
    for other in (replace(mark, started=mark.started - 1), replace(mark, boot="another")):
        with pytest.raises(ProcessLookupError):
            Orphan(other)
    await child.kill()


async def test_a_child_that_is_left_is_not_ended_by_who_left_it() -> None:
    child = Child(["sleep", "1000"], lasting=True)
    mark = mark_of(child.pid)
    assert mark is not None
    child.leave()
    child.leave()
    child.signal(signal.SIGKILL)
    await child.kill()
    orphan = Orphan(mark)
    assert not orphan.gone.is_set()
    await orphan.kill()
    assert (await asyncio.to_thread(os.waitpid, child.pid, 0))[0] == child.pid


GUARD = "sleep 1000 >/dev/null 2>&1 & echo $!; exec >/dev/null 2>&1; wait $!; exit $?"


async def guarded(folder: Path, script: str = GUARD) -> tuple[Child, Guarded]:
    """Return a guard, and what it guards."""
    os.mkfifo(folder / "told")
    telling = asyncio.create_task(asyncio.to_thread((folder / "told").read_text))
    with await asyncio.to_thread((folder / "told").open, "wb") as told:
        guard = Child(["sh", "-c", script], output=told.fileno())
    return guard, Guarded(guard, int(await telling))


async def test_a_guarded_process_is_killed_with_its_guard_which_tells_how_it_ended(tmp_path: Path) -> None:
    guard, process = await guarded(tmp_path)
    assert (process.pid != guard.pid, process.gone.is_set()) == (True, False)
    await process.kill()
    await process.kill()
    assert (process.code, guard.gone.is_set(), mark_of(process.pid), mark_of(guard.pid)) == (-9, True, None, None)


async def test_a_guarded_process_that_ends_by_itself_is_gone_with_its_code(tmp_path: Path) -> None:
    _, process = await guarded(tmp_path, "sleep 0.2 >/dev/null 2>&1 & echo $!; exec >/dev/null 2>&1; wait $!; exit 7")
    await process.gone.wait()
    assert process.code == 7
    another = Child(["true"])
    with pytest.raises(ProcessLookupError):
        Guarded(another, process.pid)
    await another.gone.wait()


async def test_a_guard_that_is_killed_does_no_harm_and_nothing_is_left(tmp_path: Path) -> None:
    guard, process = await guarded(tmp_path)
    await guard.kill()
    assert (process.gone.is_set(), mark_of(process.pid) is None) == (False, False)
    await process.kill()
    assert (process.gone.is_set(), process.code, mark_of(process.pid)) == (True, None, None)


async def test_a_guarded_process_that_is_left_goes_on_with_its_guard(tmp_path: Path) -> None:
    guard, process = await guarded(tmp_path)
    marks = [mark_of(each.pid) for each in (guard, process)]
    process.leave()
    process.leave()
    await process.kill()
    assert [mark_of(each.pid) for each in (guard, process)] == marks
    assert marks[1] is not None
    await Orphan(marks[1]).kill()
    assert (await asyncio.to_thread(os.waitpid, guard.pid, 0))[0] == guard.pid


BUSY = """
import time
held = b"a" * 50_000_000
while time.process_time() < 0.2: pass
print("done", flush=True)
time.sleep(1000)
"""


async def test_what_a_process_uses_is_told_while_it_runs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "said")

    def first_line() -> str:
        with (tmp_path / "said").open() as file:
            return file.readline()

    told = asyncio.create_task(asyncio.to_thread(first_line))
    with await asyncio.to_thread((tmp_path / "said").open, "wb") as said:
        busy = Child([sys.executable, "-c", BUSY], output=said.fileno())
    assert await told == "done\n"
    spent, held = cpu_seconds(busy.pid), resident_bytes(busy.pid)
    assert spent is not None
    assert held is not None
    assert 0.1 < spent < 10
    assert 50_000_000 < held < 500_000_000
    await busy.kill()
    assert (resident_bytes(busy.pid), cpu_seconds(busy.pid), mark_of(busy.pid)) == (None, None, None)


def test_sockets_work_at_paths_longer_than_an_address_holds(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30) / ("longer" * 20)
    folder.mkdir(parents=True)
    path = folder / "agent.sock"
    with listen_at(path) as listener, connect_to(path) as ours:
        theirs, _ = listener.accept()
        with theirs:
            ours.sendall(b"hi")
            assert theirs.recv(2) == b"hi"
    assert path.stat().st_mode & 0o777 == 0o600


def test_connecting_to_one_who_accepts_nobody_is_refused_at_once(tmp_path: Path) -> None:
    with listen_at(tmp_path / "busy.sock") as listener:
        with suppress(BlockingIOError):
            while True:
                connect_to(tmp_path / "busy.sock").close()  # each has given up, and is still in its way
        listener.accept()[0].close()
        connect_to(tmp_path / "busy.sock").close()


def test_connecting_to_nobody_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        connect_to(tmp_path / "nobody.sock")
