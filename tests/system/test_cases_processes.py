"""How commands end, and what becomes of the processes they start."""

from __future__ import annotations

import pytest

from torpor import Sandbox
from torpor.errors import ExecTimeout, InvalidRequest

COUNT_ZOMBIES = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '"


def test_an_unknown_command_is_127(sandbox: Sandbox) -> None:
    result = sandbox.exec("no-such-command-here")
    assert result.exit_code == 127
    assert "not found" in result.stderr


def test_an_unknown_program_run_as_a_list_is_127_and_says_which(sandbox: Sandbox) -> None:
    result = sandbox.exec(["no-such-program-here", "x"])
    assert result.exit_code == 127
    assert "no-such-program-here" in result.stderr


@pytest.mark.parametrize("command", ["/tmp/plain.txt", ["/tmp/plain.txt"]], ids=["shell", "list"])
def test_a_file_that_is_no_program_is_126(sandbox: Sandbox, command: str | list[str]) -> None:
    sandbox.filesystem.write("/tmp/plain.txt", "hello\n", mode=0o644)
    assert sandbox.exec(command).exit_code == 126


def test_a_command_ended_by_a_signal_is_128_and_the_signal_with_its_name(sandbox: Sandbox) -> None:
    result = sandbox.exec("kill -9 $$")
    assert (result.exit_code, result.signal) == (137, "SIGKILL")


@pytest.mark.parametrize(("command", "code"), [("exit 300", 44), ("exit 255", 255), ("true", 0), ("false", 1)])
def test_a_commands_own_code_is_its_result(sandbox: Sandbox, command: str, code: int) -> None:
    result = sandbox.exec(command)
    assert (result.exit_code, result.signal) == (code, None)


@pytest.mark.parametrize("empty", ["", []], ids=["shell", "list"])
def test_an_empty_command_is_refused(sandbox: Sandbox, empty: str | list[str]) -> None:
    with pytest.raises(InvalidRequest):
        sandbox.exec(empty)


def test_a_timeout_ends_the_whole_tree_and_keeps_what_was_written(sandbox: Sandbox) -> None:
    command = (
        "setsid sh -c 'exec python3 -m http.server 9000' >/dev/null 2>&1 &"
        " until (exec 3<>/dev/tcp/127.0.0.1/9000) 2>/dev/null; do sleep 0.1; done; echo serving; wait"
    )
    with pytest.raises(ExecTimeout) as caught:
        sandbox.exec(["bash", "-c", command], timeout_seconds=8)
    assert caught.value.stdout == "serving\n"
    left = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $f 2>/dev/null; echo; done | grep -c '[h]ttp.server'"
    assert sandbox.exec(left).stdout == "0\n"
    bind = "import socket; socket.create_server(('127.0.0.1', 9000)).close(); print('free')"
    assert sandbox.exec(["python3", "-c", bind], check=True).stdout == "free\n"


def test_a_process_in_the_background_has_no_timeout_of_its_own(sandbox: Sandbox) -> None:
    started = sandbox.exec("sleep 300 >/dev/null 2>&1 & echo $!", timeout_seconds=10, check=True)
    pid = int(started.stdout)
    # Longer than the timeout of the command that started it.
    later = sandbox.exec(f"sleep 12; kill -0 {pid} && echo alive; kill {pid}", check=True)
    assert later.stdout == "alive\n"


def test_a_command_that_leaves_a_process_with_its_output_behind_still_ends(sandbox: Sandbox) -> None:
    result = sandbox.exec("sleep 300 & echo $!", check=True, timeout_seconds=30)
    assert sandbox.exec(f"kill {int(result.stdout)}").exit_code == 0


def test_a_server_started_in_one_step_serves_in_a_later_one(sandbox: Sandbox) -> None:
    sandbox.filesystem.write("/srv/page/index.html", "the page")
    started = sandbox.exec("cd /srv/page && nohup python3 -m http.server 8000 >/dev/null 2>&1 & echo $!", check=True)
    call = "curl --retry 40 --retry-delay 1 --retry-connrefused --silent --show-error http://127.0.0.1:8000/"
    assert sandbox.exec(call, check=True, timeout_seconds=60).stdout == "the page"
    sandbox.exec(f"kill {int(started.stdout)}", check=True)


ORPHANS = """
import os
for _ in range(1000):
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os._exit(7)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_thousand_orphans_leave_no_zombies(sandbox: Sandbox) -> None:
    sandbox.exec(["python3", "-c", ORPHANS], check=True, timeout_seconds=120)
    # At most two seconds, looked at every tenth of one.
    wait = f"for i in $(seq 20); do n=$({COUNT_ZOMBIES}); [ $n = 0 ] && break; sleep 0.1; done; echo $n"
    assert sandbox.exec(wait).stdout == "0\n"


def test_reaping_orphans_takes_no_exit_code_away(sandbox: Sandbox) -> None:
    assert sandbox.exec("(sleep 0.2 &) ; (exit 3) & wait $!; exit $?").exit_code == 3
