"""Sandboxes that are put to sleep and woken: nothing in them is lost, and they know what time it is."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from guests import clock_error_s, machines_of
from torpor import Client, Sandbox
from torpor.errors import Conflict, OutcomeUnknown, SandboxLost

LINES = 1_500_000
SLEEPER = """import time
monotonic, wall = time.monotonic(), time.time()
open("/root/begun", "w").write("begun")
time.sleep(8)
print(time.monotonic() - monotonic, time.time() - wall)
"""
COUNTER = """import time
n = 0
while True:
    n += 1
    open("/work/n", "w").write(str(n))
    time.sleep(0.05)
"""


@contextmanager
def in_background(work: threading.Thread) -> Iterator[None]:
    work.start()
    try:
        yield
    finally:
        work.join(120)
        assert not work.is_alive()


def test_the_first_command_after_a_wake_finds_the_right_time(fresh_sandbox: Sandbox) -> None:
    fresh_sandbox.hibernate()
    time.sleep(4)  # what is tested is that this time has passed for the guest too
    fresh_sandbox.wake()
    assert abs(clock_error_s(fresh_sandbox)) <= 1


def test_a_sleeping_process_sleeps_on_by_its_own_time_and_wakes_to_the_right_one(fresh_sandbox: Sandbox) -> None:
    fresh_sandbox.filesystem.write("/root/sleeper.py", SLEEPER)
    fresh_sandbox.exec("python3 /root/sleeper.py > /root/woke 2>&1 </dev/null &")
    fresh_sandbox.exec("until [ -s /root/begun ]; do sleep 0.1; done", timeout_seconds=60)
    fresh_sandbox.hibernate()
    time.sleep(5)
    fresh_sandbox.wake()
    fresh_sandbox.exec("until [ -s /root/woke ]; do sleep 0.1; done", timeout_seconds=60)
    monotonic_s, wall_s = map(float, fresh_sandbox.filesystem.read_text("/root/woke").split())
    assert 8 <= monotonic_s < 10, "by its own clock it slept as long as it wanted"
    assert wall_s - monotonic_s >= 4.5, "and by the clock on the wall longer, by the time the machine slept"


def test_a_hibernated_sandbox_has_no_process(fresh_sandbox: Sandbox) -> None:
    assert len(machines_of(fresh_sandbox)) == 1
    fresh_sandbox.hibernate()
    assert machines_of(fresh_sandbox) == []
    assert fresh_sandbox.refresh().state == "hibernated"


def test_an_exec_or_a_file_wakes_a_sandbox_and_finds_it_as_it_was(fresh_sandbox: Sandbox) -> None:
    fresh_sandbox.filesystem.write("/work/kept", "here")
    fresh_sandbox.hibernate()
    time.sleep(2)
    assert fresh_sandbox.exec("cat /work/kept").stdout == "here"
    fresh_sandbox.hibernate()
    assert fresh_sandbox.filesystem.read_text("/work/kept") == "here"
    assert fresh_sandbox.refresh().state == "running"


def test_many_who_need_a_sleeper_at_once_wake_it_once(fresh_sandbox: Sandbox) -> None:
    fresh_sandbox.hibernate()
    answers: list[str] = []
    callers = [
        threading.Thread(target=lambda: answers.append(fresh_sandbox.exec("cat /run/torpor/identity.json").stdout))
        for _ in range(8)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert len(answers) == 8
    assert len(set(answers)) == 1, "each wake would have given it another generation"


def test_processes_listeners_and_an_interpreter_s_memory_are_as_they_were(fresh_sandbox: Sandbox) -> None:
    fresh_sandbox.filesystem.write("/work/page", "still served")
    fresh_sandbox.exec("cd /work && nohup python3 -m http.server 8000 >/dev/null 2>&1 </dev/null &")
    counter = (
        "import time\nn = 0\nwhile True:\n    n += 1\n    open('/work/n', 'w').write(str(n))\n    time.sleep(0.05)\n"
    )
    fresh_sandbox.filesystem.write("/work/counter.py", counter)
    fresh_sandbox.exec("nohup python3 /work/counter.py >/dev/null 2>&1 </dev/null & echo $! > /work/pid")
    get = "curl --silent --retry 50 --retry-delay 1 --retry-connrefused http://127.0.0.1:8000/page"
    assert fresh_sandbox.exec(get, timeout_seconds=60).stdout == "still served"
    before = int(fresh_sandbox.exec("sleep 1; cat /work/n").stdout)
    fresh_sandbox.hibernate()
    fresh_sandbox.wake()
    assert fresh_sandbox.exec(get, timeout_seconds=20).stdout == "still served"
    after = int(fresh_sandbox.exec("kill -0 $(cat /work/pid) && sleep 1; cat /work/n").stdout)
    assert after > before > 0


def test_files_written_between_hibernations_are_all_there(fresh_sandbox: Sandbox) -> None:
    for number in range(5):
        fresh_sandbox.filesystem.write(f"/work/{number}", str(number) * 1000)
        fresh_sandbox.hibernate()
        fresh_sandbox.wake()
        found = [entry.name for entry in fresh_sandbox.filesystem.list("/work")]
        assert found == [str(each) for each in range(number + 1)]
        for each in range(number + 1):
            assert fresh_sandbox.filesystem.read_text(f"/work/{each}") == str(each) * 1000


def test_hibernating_and_waking_a_hundred_times_back_to_back_never_fails(fresh_sandbox: Sandbox) -> None:
    for _ in range(100):
        fresh_sandbox.hibernate()
        fresh_sandbox.wake()
    assert fresh_sandbox.exec("echo here").stdout == "here\n"


def test_a_command_that_talks_without_end_goes_on_after_the_wake_and_loses_nothing(fresh_sandbox: Sandbox) -> None:
    """A new command is answered at once, and the one under way resumes where it stopped."""
    digest, size, some = hashlib.sha256(), 0, threading.Event()

    def take(piece: bytes) -> None:
        nonlocal size
        digest.update(piece)
        size += len(piece)
        if size > 1_000_000:
            some.set()

    codes: list[int] = []
    talking = threading.Thread(
        target=lambda: codes.append(
            fresh_sandbox.exec(f"seq 1 {LINES}", on_stdout=take, binary=True, timeout_seconds=60).exit_code
        )
    )
    with in_background(talking):
        assert some.wait(30)
        fresh_sandbox.hibernate()
        stopped_at = size
        time.sleep(1)
        assert size == stopped_at < 10_000_000
        fresh_sandbox.wake()
        began = time.monotonic()
        assert fresh_sandbox.exec("echo here").stdout == "here\n"
        assert time.monotonic() - began < 2
    expected = "".join(f"{number}\n" for number in range(1, LINES + 1)).encode()
    assert codes == [0]
    assert (size, digest.hexdigest()) == (len(expected), hashlib.sha256(expected).hexdigest())


def test_time_asleep_does_not_count_against_a_command_s_timeout(fresh_sandbox: Sandbox) -> None:
    started = threading.Event()
    codes: list[int] = []
    waiting = threading.Thread(
        target=lambda: codes.append(
            fresh_sandbox.exec(
                "echo begun; sleep 2; exit 7", timeout_seconds=6, on_stdout=lambda _: started.set()
            ).exit_code
        )
    )
    with in_background(waiting):
        assert started.wait(30)
        fresh_sandbox.hibernate()
        time.sleep(8)
        fresh_sandbox.wake()
    assert codes == [7]


def test_an_upload_that_is_under_way_goes_on_after_the_wake(fresh_sandbox: Sandbox) -> None:
    piece, half, go_on = bytes(range(256)) * 256, threading.Event(), threading.Event()

    def pieces() -> Iterator[bytes]:
        for number in range(200):
            if number == 100:
                half.set()
                go_on.wait(30)
            yield piece

    uploading = threading.Thread(target=lambda: fresh_sandbox.filesystem.write("/work/large", pieces()))
    with in_background(uploading):
        assert half.wait(30)
        fresh_sandbox.hibernate()
        fresh_sandbox.wake()
        go_on.set()
    said = fresh_sandbox.exec("sha256sum /work/large").stdout.split()[0]
    assert said == hashlib.sha256(piece * 200).hexdigest()


def test_a_paused_sandbox_stands_still_and_its_clock_is_right_when_it_goes_on(fresh_sandbox: Sandbox) -> None:
    fresh_sandbox.pause()
    fresh_sandbox.pause()
    with pytest.raises(Conflict, match="paused"):
        fresh_sandbox.exec("true")
    time.sleep(3)
    fresh_sandbox.resume()
    fresh_sandbox.resume()
    assert abs(clock_error_s(fresh_sandbox)) <= 1


def test_hooks_run_before_a_freeze_and_after_a_wake(fresh_sandbox: Sandbox) -> None:
    for event in ("pre-freeze", "post-wake", "post-fork"):
        for order in ("20-second", "10-first"):
            path = f"/etc/torpor/hooks/{event}.d/{order}"
            fresh_sandbox.filesystem.write(path, f'#!/bin/sh\necho "$TORPOR_HOOK {order}" >> /root/told\n', mode=0o755)
    fresh_sandbox.filesystem.write("/etc/torpor/hooks/post-wake.d/30-fails", "#!/bin/sh\nexit 3\n", mode=0o755)
    fresh_sandbox.hibernate()
    fresh_sandbox.wake()
    told = ["pre-freeze 10-first", "pre-freeze 20-second", "post-wake 10-first", "post-wake 20-second"]
    assert fresh_sandbox.filesystem.read_text("/root/told").splitlines() == told
    assert "30-fails" in fresh_sandbox.logs()


@pytest.mark.parametrize("state", ["running", "paused", "hibernated", "failed"])
def test_a_sandbox_is_deleted_from_every_state_and_deleting_again_is_fine(client: Client, state: str) -> None:
    sandbox = Sandbox.create(client=client, ttl_seconds=600)
    if state == "paused":
        sandbox.pause()
    elif state == "hibernated":
        sandbox.hibernate()
    elif state == "failed":
        with pytest.raises((SandboxLost, OutcomeUnknown)):
            sandbox.exec("echo b > /proc/sysrq-trigger; sleep 600")
    for _ in range(2):
        sandbox.delete()
    assert machines_of(sandbox) == []
    assert sandbox.id not in [each.id for each in Sandbox.list(client=client)]
    assert sandbox.snapshots() == []
